//! Imports between the folders of the store run one way.

/// From the bottom to the top; `lib` is a file. It has `Store` and `StoreError`, which every folder uses.
const ORDER: [&str; 12] = [
    "values", "database", "audit", "identity", "usage", "keys", "limits", "people", "service", "ledger", "copying",
    "lib",
];

#[test]
fn imports_between_folders_run_one_way() {
    testbed::assert_imports_run_one_way(env!("CARGO_MANIFEST_DIR"), &ORDER);
}
