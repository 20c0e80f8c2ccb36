//! The identity provider: its client, and what its groups mean here.

use store::Role;

pub const CALLBACK_PATH: &str = "/sign-in/provider/callback";

pub struct IdentityProvider {
    pub client: oidc::Provider,
    /// Shown to people.
    pub name: String,
    /// Groups that may sign in; empty: everyone whom the provider knows.
    pub allowed_groups: Vec<String>,
    /// Groups of administrators; empty: roles are assigned in the console.
    pub admin_groups: Vec<String>,
    /// Whether every address counts as verified, regardless of the provider's claim.
    pub is_email_trusted: bool,
}

impl IdentityProvider {
    /// `Err` if the groups do not allow sign-in.
    pub(crate) fn role(&self, groups: &[String]) -> Result<Option<Role>, NotAllowed> {
        let is_in = |list: &[String]| groups.iter().any(|group| list.contains(group));
        let is_admin = is_in(&self.admin_groups);
        if !self.allowed_groups.is_empty() && !is_admin && !is_in(&self.allowed_groups) {
            return Err(NotAllowed);
        }
        let role = if is_admin { Role::Admin } else { Role::Developer };
        Ok((!self.admin_groups.is_empty()).then_some(role))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAllowed;

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;

    fn groups(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn provider(allowed: &[&str], admins: &[&str]) -> IdentityProvider {
        let settings = oidc::ProviderSettings {
            issuer: Url::parse("https://login.example.com").unwrap(),
            client_id: "console".into(),
            client_secret: None,
            scopes: Vec::new(),
            groups_claim: "groups".into(),
            redirect_url: Url::parse("https://console.example.com/sign-in/provider/callback").unwrap(),
        };
        let client = oidc::Provider::new(settings, std::time::Duration::from_secs(1)).unwrap();
        let (allowed_groups, admin_groups) = (groups(allowed), groups(admins));
        IdentityProvider { client, name: "Example".into(), allowed_groups, admin_groups, is_email_trusted: false }
    }

    #[test]
    fn groups_decide_access_and_role() {
        let (developer, admin) = (Ok(Some(Role::Developer)), Ok(Some(Role::Admin)));
        for (allowed, admins, mine, expected) in [
            (&[][..], &[][..], &[][..], Ok(None)),
            (&[], &[], &["ops"], Ok(None)),
            (&["dev"], &[], &[], Err(NotAllowed)),
            (&["dev"], &[], &["Dev"], Err(NotAllowed)),
            (&["dev"], &[], &["x", "dev"], Ok(None)),
            (&[], &["ops"], &["dev"], developer),
            (&[], &["ops"], &["dev", "ops"], admin),
            (&["dev"], &["ops"], &["ops"], Ok(Some(Role::Admin))),
            (&["dev"], &["ops"], &["dev"], Ok(Some(Role::Developer))),
            (&["dev"], &["ops"], &["guests"], Err(NotAllowed)),
        ] {
            let found = provider(allowed, admins).role(&groups(mine));
            assert_eq!(found, expected, "{allowed:?} {admins:?} {mine:?}");
        }
    }
}
