//! Key search for lists. The database filters and orders, and only the keys of one page are read in full: a page of ten
//! thousand keys costs little more than a page of ten.

use std::collections::HashMap;

use chat::KeyId;

use crate::database::patterns::Patterns;
use crate::database::sql::{Value, params};
use crate::keys::key::{KeyRecord, KeyState, VISIBLE};
use crate::values::Viewer;
use crate::{Keys, StoreError};

/// The criteria of a search.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeySearch<'a> {
    /// A part of the name, the project, the owner's e-mail address, or the key up to its secret; empty matches all. Ignores
    /// case, beyond ASCII only as far as the database supports it.
    pub text: &'a str,
    pub state: Option<KeyState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    Name,
    Created,
    /// To within about a second: uses that are not yet in the sums are ignored.
    LastUsed,
    /// Keys that never expire come last.
    Expiry,
}

impl KeyOrder {
    fn column(self) -> &'static str {
        match self {
            Self::Name => "lower(keys.name)",
            Self::Created => "keys.created_at",
            Self::LastUsed => "COALESCE(last_used_at, 0)",
            Self::Expiry => "COALESCE(expires_at, 9223372036854775807)",
        }
    }
}

impl KeyState {
    /// `$4` is the current time.
    fn condition(self) -> &'static str {
        match self {
            Self::Active => "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $4)",
            Self::Expired => "revoked_at IS NULL AND expires_at <= $4",
            Self::Revoked => "revoked_at IS NOT NULL AND $4 >= 0",
        }
    }
}

impl Keys<'_> {
    /// The matching keys that the viewer may see, in that order.
    pub async fn search(
        self,
        viewer: &Viewer,
        search: &KeySearch<'_>,
        order: KeyOrder,
        descending: bool,
    ) -> Result<Vec<KeyId>, StoreError> {
        let (column, direction) = (order.column(), if descending { "DESC" } else { "ASC" });
        let state = search.state.map_or("$4 >= 0", KeyState::condition);
        let find = format!(
            r"SELECT keys.id FROM keys LEFT JOIN accounts ON accounts.id = owner
            WHERE {VISIBLE} AND NOT playground AND {state} AND ($2 = '%%' OR lower(keys.name) LIKE $2 ESCAPE '\'
                OR keys.name LIKE $3 ESCAPE '\' OR lower(email) LIKE $2 ESCAPE '\'
                OR lower(project) LIKE $2 ESCAPE '\' OR lower('adria_' || keys.id) LIKE $2 ESCAPE '\')
            ORDER BY {column} {direction}, keys.id {direction}"
        );
        let Patterns { lower, typed } = Patterns::containing(search.text);
        let parameters = params![viewer.scope(), &*lower, &*typed, self.now()];
        self.connection().await?.query(&find, parameters, |row| row.get(0)).await
    }

    /// These keys in this order, without those that the viewer may not see.
    pub async fn with_ids(self, viewer: &Viewer, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<_> = (2..ids.len() + 2).map(|number| format!("${number}")).collect();
        let parameters: Vec<Value<'_>> =
            std::iter::once(viewer.scope().into()).chain(ids.iter().map(Value::from)).collect();
        let keys = self.records(&format!("{VISIBLE} AND keys.id IN ({})", places.join(", ")), &parameters).await?;
        let mut keys: HashMap<_, _> = keys.into_iter().map(|key| (key.id, key)).collect();
        Ok(ids.iter().filter_map(|id| keys.remove(id)).collect())
    }
}
