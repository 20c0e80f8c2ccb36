//! Runs third-party code on untrusted bytes: a panic becomes an error without output.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_SILENCED: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
pub(super) struct Panicked;

/// After a panic, callers must drop all values that the code has modified.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    // The hook is global: it is silent on threads that set the flag, and calls the previous hook on others.
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_SILENCED.get() {
                before(panic);
            }
        }));
    });
    let outer = IS_SILENCED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_SILENCED.set(outer);
    outcome.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert!(catch_panic(|| panic!("this must not be printed")).is_err());
        assert_eq!(catch_panic(|| 7).ok(), Some(7));
        assert!(!IS_SILENCED.get());
    }
}
