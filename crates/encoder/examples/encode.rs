//! Prints the time of encoding texts, and the similarity of the first text to the others.
//!
//!     cargo run --profile quick -p encoder --example encode -- WHEEL TEXT…
use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let began = Instant::now();
    let encoder = encoder::Encoder::load(arguments[0].as_ref()).expect("the package");
    println!("loaded in {:?}", began.elapsed());
    let texts = &arguments[1..];
    let began = Instant::now();
    let vectors = encoder.encode(texts);
    println!("first call {:?}", began.elapsed());
    for (text, vector) in texts.iter().zip(&vectors) {
        let cosine: f32 = vector.iter().zip(&vectors[0]).map(|(a, b)| a * b).sum();
        println!("{cosine:.4} {text} {:?}", &vector[..3]);
    }
    let began = Instant::now();
    for _ in 0..100 {
        encoder.encode(&texts[..1]);
    }
    println!("one at a time {:?}", began.elapsed() / 100);
    let long: Vec<String> =
        (0..200).map(|at| texts.iter().cycle().skip(at).take(8).cloned().collect::<Vec<_>>().join(" ")).collect();
    let began = Instant::now();
    encoder.encode(&long);
    println!("200 long texts {:?} ({} words each)", began.elapsed(), long[0].split_whitespace().count());
}
