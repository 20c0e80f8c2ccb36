//! The id of this installation's search index. The index itself is a folder, which can be lost while the database is not;
//! the stored id reveals the loss.

use crate::database::sql::{Row, params};
use crate::{SearchIndex, StoreError};

const FIND: &str = "SELECT index_id FROM search_index";

impl SearchIndex<'_> {
    /// The id of the index that must exist; `None` if there never was one, or it was forgotten.
    pub async fn expected(self) -> Result<Option<String>, StoreError> {
        self.connection().await?.query_optional(FIND, &[], index_id).await
    }

    /// Expects this index, unless another is already expected. Returns the expected one.
    pub async fn expect(self, id: &str) -> Result<String, StoreError> {
        self.change_without_viewer(async |transaction| {
            let insert = "INSERT INTO search_index (id, index_id) VALUES (1, $1) ON CONFLICT (id) DO NOTHING";
            transaction.execute(insert, params![id]).await?;
            transaction.query_optional(FIND, &[], index_id).await?.ok_or(StoreError::Corrupt("index"))
        })
        .await
    }

    /// Forgets the expected index. Returns whether there was one.
    pub async fn forget(self) -> Result<bool, StoreError> {
        self.change_without_viewer(async |transaction| {
            Ok(transaction.execute("DELETE FROM search_index", &[]).await? > 0)
        })
        .await
    }
}

fn index_id(row: &Row<'_>) -> Result<String, StoreError> {
    row.get(0)
}
