//! Imports between the folders of the console run one way.

/// From the bottom to the top; `routes` and `lib` are files.
const ORDER: [&str; 11] =
    ["credentials", "page", "playground", "sign_in", "usage", "people", "limits", "keys", "overview", "routes", "lib"];

#[test]
fn imports_between_folders_run_one_way() {
    testbed::assert_imports_run_one_way(env!("CARGO_MANIFEST_DIR"), &ORDER);
}
