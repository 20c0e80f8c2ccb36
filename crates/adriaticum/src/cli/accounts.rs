//! `adriaticum accounts`.

use std::time::Duration;

use chat::KeyName;
use clap::Subcommand;
use store::{Email, PersonName, Role};

use super::values::{lifetime, on_or_off};

#[derive(Subcommand)]
pub(crate) enum AccountsCommand {
    /// Lists all accounts.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints a link that creates the first administrator's account, once.
    SetUp,
    /// Prints a link that creates one account.
    Invite {
        /// Whom it is for, as a note.
        #[arg(default_value = "somebody", value_parser = invited_name)]
        note: String,
        /// The role of the account: admin or developer.
        #[arg(long, default_value = "developer")]
        role: Role,
        /// How long the link works.
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = lifetime)]
        expires: Duration,
    },
    /// Prints a link that sets a new password once.
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
        /// Also revokes all of their keys.
        #[arg(long)]
        revoke_keys: bool,
    },
    /// Changes an account's name or e-mail address.
    Set {
        /// The account's e-mail address.
        email: Email,
        /// Another name.
        #[arg(long, value_parser = PersonName::parse)]
        name: Option<PersonName>,
        /// Another e-mail address.
        #[arg(long, value_name = "EMAIL")]
        new_email: Option<Email>,
    },
    /// Deletes an account for good and revokes its keys. What was recorded stays, without a name.
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
    /// Removes an account's authenticator app, passkeys and recovery codes, for somebody who has lost them.
    RemoveSecondFactors {
        /// The account's e-mail address.
        email: Email,
    },
    /// Forgets which person of the identity provider an account belongs to. The next one with its verified address gets it.
    Disconnect {
        /// The account's e-mail address.
        #[arg(required_unless_present = "everyone")]
        email: Option<Email>,
        /// All accounts: the provider has new names for the same people.
        #[arg(long, conflicts_with = "email")]
        everyone: bool,
    },
    /// Lists people whose accounts were deleted, and who do not return by the identity provider.
    Deleted {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lets a deleted person return by the identity provider, to a new account.
    Allow {
        /// The e-mail address that the account had.
        email: Email,
    },
    /// Requires a second factor of everybody who signs in with a password, or makes it optional.
    RequireSecondFactor {
        /// on or off.
        #[arg(value_parser = on_or_off, action = clap::ArgAction::Set)]
        required: bool,
    },
    /// Lists the links that are still open: invitations and password resets.
    Links {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Withdraws an open link.
    Withdraw {
        /// The link's id, from `accounts links`.
        id: String,
    },
}

fn invited_name(text: &str) -> Result<String, &'static str> {
    KeyName::parse(text).map(String::from).map_err(|_| "a name has 1 to 100 printable characters")
}
