//! `adriaticum accounts`.

use std::time::Duration;

use chat::KeyName;
use clap::Subcommand;
use store::{Email, PersonName, Role};

use super::values::lifetime;
use crate::settings::on_or_off;

#[derive(Subcommand)]
pub(crate) enum AccountsCommand {
    /// Lists all accounts.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints a one-time link that creates the first administrator's account.
    SetUp,
    /// Prints a one-time link that creates an account.
    Invite {
        /// A note on the link, such as the name of its recipient.
        #[arg(default_value = "a user", value_parser = invited_name)]
        note: String,
        /// The role of the account: admin or developer.
        #[arg(long, default_value = "developer")]
        role: Role,
        /// Lifetime of the link.
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = lifetime)]
        expires: Duration,
    },
    /// Prints a one-time link that sets a new password.
    Reset {
        /// The account's e-mail address.
        email: Email,
    },
    /// Changes an account's role.
    Role {
        /// The account's e-mail address.
        email: Email,
        /// admin or developer.
        role: Role,
    },
    /// Disables an account: ends its sessions, withdraws its links and refuses sign-in.
    Disable {
        /// The account's e-mail address.
        email: Email,
        /// Also revokes all keys of the account.
        #[arg(long)]
        revoke_keys: bool,
    },
    /// Changes an account's name or e-mail address.
    Set {
        /// The account's e-mail address.
        email: Email,
        /// The new name.
        #[arg(long, value_parser = PersonName::parse)]
        name: Option<PersonName>,
        /// The new e-mail address.
        #[arg(long, value_name = "EMAIL")]
        new_email: Option<Email>,
    },
    /// Deletes an account permanently and revokes its keys. Its records stay, without a name.
    Delete {
        /// The account's e-mail address.
        email: Email,
    },
    /// Enables a disabled account.
    Enable {
        /// The account's e-mail address.
        email: Email,
    },
    /// Ends all sessions of an account.
    SignOut {
        /// The account's e-mail address.
        email: Email,
    },
    /// Removes an account's authenticator app, passkeys and recovery codes, for a user who has lost them.
    RemoveSecondFactors {
        /// The account's e-mail address.
        email: Email,
    },
    /// Disconnects an account from its person at the identity provider. The next person who signs in there with the
    /// account's verified address gets it.
    Disconnect {
        /// The account's e-mail address.
        #[arg(required_unless_present = "everyone")]
        email: Option<Email>,
        /// All accounts, for a provider that has new ids for the same people.
        #[arg(long, conflicts_with = "email")]
        everyone: bool,
    },
    /// Lists deleted people, who cannot sign in again through the identity provider.
    Deleted {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Allows a deleted person to sign in again through the identity provider, with a new account.
    Allow {
        /// The e-mail address that the account had.
        email: Email,
    },
    /// Requires a second factor for every sign-in with a password, or makes it optional.
    RequireSecondFactor {
        /// on or off.
        #[arg(value_parser = on_or_off, action = clap::ArgAction::Set)]
        required: bool,
    },
    /// Lists pending links: set-up, invitations and password resets.
    Links {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Withdraws a pending link.
    Withdraw {
        /// The link's id, from `accounts links`.
        id: String,
    },
}

fn invited_name(text: &str) -> Result<String, &'static str> {
    KeyName::parse(text).map(String::from).map_err(|_| "a name has 1 to 100 printable characters")
}
