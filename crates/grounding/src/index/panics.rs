//! Runs other people's code on other people's bytes: a panic in it becomes an error, and no message on the screen.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The code panicked.
#[derive(Debug)]
pub(super) struct Panicked;

/// Runs that. Nothing it has touched may be used after a panic; callers throw it away.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    // The hook is the whole process's: it keeps silent for those who asked, and passes everybody else on.
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                before(panic);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(outer);
    outcome.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert!(catch_panic(|| panic!("nobody should read this")).is_err());
        assert_eq!(catch_panic(|| 7).ok(), Some(7));
        assert!(!QUIET.get());
    }
}
