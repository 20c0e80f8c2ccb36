//! Generates small PDFs.

use std::fmt::Write;

/// One page with these lines.
pub(crate) fn document(title: &str, modified: &str, lines: &[&str]) -> Vec<u8> {
    let mut page = String::from("BT /F1 12 Tf 72 720 Td 14 TL");
    for line in lines {
        let _ = write!(page, " ({line}) Tj T*");
    }
    page.push_str(" ET");
    assemble(
        &[
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R \
             /Resources << /Font << /F1 5 0 R >> >> >>",
            &format!("<< /Length {} >>\nstream\n{page}\nendstream", page.len()),
            "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
            &format!("<< /Title ({title}) /ModDate ({modified}) >>"),
        ],
        "/Info 6 0 R",
    )
}

/// An encrypted document with an unknown password.
pub(crate) fn locked() -> Vec<u8> {
    let noise = "5A".repeat(32);
    assemble(
        &[
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [] /Count 0 >>",
            &format!("<< /Filter /Standard /V 1 /R 2 /O <{noise}> /U <{noise}> /P -4 >>"),
        ],
        "/Encrypt 3 0 R /ID [<00> <00>]",
    )
}

fn assemble(objects: &[&str], trailer: &str) -> Vec<u8> {
    let mut pdf = String::from("%PDF-1.4\n");
    let mut table = String::from("0000000000 65535 f \n");
    for (n, object) in (1..).zip(objects) {
        let _ = writeln!(table, "{:010} 00000 n ", pdf.len());
        let _ = write!(pdf, "{n} 0 obj\n{object}\nendobj\n");
    }
    let start = pdf.len();
    let size = objects.len() + 1;
    let _ = write!(
        pdf,
        "xref\n0 {size}\n{table}trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n"
    );
    pdf.into_bytes()
}
