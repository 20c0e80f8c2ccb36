//! The index as those who use it see it: folders with documents go in, questions find passages.

#[path = "index/pdf.rs"]
mod pdf;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use grounding::Passage;
use grounding::index::{AddOptions, Index, IndexError, Library, Progress, Report};
use jiff::civil::date;
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn Error>>;
/// Something that happens to a folder or file.
type Change = fn(&Path) -> std::io::Result<()>;

/// A folder of documents and an index.
struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> std::io::Result<Self> {
        let root = tempfile::tempdir()?;
        fs::create_dir(root.path().join("papers"))?;
        Ok(Self { root })
    }

    fn documents(&self) -> PathBuf {
        self.root.path().join("papers")
    }

    fn index_folder(&self) -> PathBuf {
        self.root.path().join("data/index")
    }

    fn library(&self) -> Library {
        Library::at(self.index_folder())
    }

    fn write(&self, path: &str, contents: impl AsRef<[u8]>) -> std::io::Result<()> {
        let path = self.documents().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, contents)
    }

    fn add(&self) -> Result<Report, IndexError> {
        self.library().add(&self.documents(), &AddOptions::default(), &mut |_| ())
    }

    fn add_with_prefix(&self, prefix: &str) -> Result<Report, IndexError> {
        let options = AddOptions { url_prefix: Some(prefix.to_owned()) };
        self.library().add(&self.documents(), &options, &mut |_| ())
    }

    fn index(&self) -> Result<Index, Box<dyn Error>> {
        Ok(Index::open(&self.index_folder())?.ok_or("nothing was indexed")?)
    }

    fn ask(&self, question: &str) -> Result<Vec<Passage>, Box<dyn Error>> {
        Ok(self.index()?.search(question, 5)?)
    }

    /// The addresses of what is found.
    fn found(&self, question: &str) -> Result<Vec<String>, Box<dyn Error>> {
        Ok(self.ask(question)?.into_iter().map(|passage| passage.url).collect())
    }

    /// How many documents were added, changed, unchanged, removed and skipped.
    fn counts(&self) -> Result<[u64; 5], IndexError> {
        let report = self.add()?;
        Ok([report.added, report.changed, report.unchanged, report.removed, report.skipped.len() as u64])
    }
}

/// Two documents for each language, so that finding the language is not finding the passage.
const LIBRARY: [(&str, &str); 18] = [
    (
        "en/lighthouse.md",
        "# The lighthouse\n\nThe lighthouse on the northern cape was built in 1818 and is 36 metres high. Its lamp is visible from twenty nautical miles away.",
    ),
    (
        "en/harbour.md",
        "# The harbour\n\nShips that enter the harbour pay a fee by their length. The harbour master is in the office from seven in the morning.",
    ),
    (
        "de/leuchtturm.txt",
        "Der Leuchtturm auf der Insel wurde 1818 erbaut. Er ist sechsunddreißig Meter hoch, und die Wärter bewohnten früher zwei Häuser daneben.",
    ),
    (
        "de/faehre.txt",
        "Die Fähre fährt täglich um acht Uhr ab. Für Fahrzeuge über drei Tonnen gelten besondere Gebühren, die an der Kasse bezahlt werden.",
    ),
    (
        "fr/phare.html",
        "<title>Le phare</title><h1>Le phare</h1><p>Le phare du cap a été construit en 1818. Sa hauteur est de trente-six mètres et sa lumière est visible à vingt milles.",
    ),
    (
        "fr/marche.html",
        "<title>Le marché</title><h1>Le marché</h1><p>Le marché aux poissons ouvre à cinq heures du matin. Les pêcheurs y vendent leurs sardines et leurs huîtres.",
    ),
    (
        "es/faro.md",
        "# El faro\n\nEl faro del cabo fue construido en 1818 y tiene treinta y seis metros de altura. La luz se ve desde veinte millas náuticas.",
    ),
    (
        "es/vino.md",
        "# Las bodegas\n\nLas bodegas de la región producen vino tinto con uvas de viñas muy viejas. La cosecha comienza a mediados de septiembre.",
    ),
    (
        "it/faro.html",
        "<h1>Il faro</h1><p>Il faro sul promontorio fu costruito nel 1818 ed è alto trentasei metri. I guardiani vivevano nelle case vicine.</p>",
    ),
    (
        "it/olio.html",
        "<h1>L'olio</h1><p>L'olio d'oliva della regione viene prodotto in piccoli frantoi. Le olive si raccolgono a mano in novembre.</p>",
    ),
    (
        "pt/farol.txt",
        "O farol do cabo foi construído em 1818 e tem trinta e seis metros de altura. Os navios avistam a luz a vinte milhas náuticas.",
    ),
    (
        "pt/pao.txt",
        "A padaria da aldeia abre às seis da manhã. O pão de milho é cozido num forno de lenha e custa dois euros.",
    ),
    (
        "hr/svjetionik.md",
        "# Svjetionik\n\nSvjetionik na rtu sagrađen je 1818. godine i visok je trideset i šest metara. Čuvari su živjeli u dvjema kućama pokraj njega.",
    ),
    (
        "hr/trajekt.md",
        "# Trajekt\n\nTrajekt za otoke polazi svaki dan u osam sati. Karte se kupuju na blagajni u luci, a djeca se voze besplatno.",
    ),
    ("ja/todai.txt", "岬の灯台は1818年に建てられ、高さは三十六メートルです。光は二十海里先から見えます。"),
    ("ja/ichiba.txt", "魚市場は朝五時に開きます。漁師たちがイワシや牡蠣を売っています。駐車場はありません。"),
    ("zh/dengta.txt", "海角的灯塔建于1818年，高三十六米。从二十海里外就能看到它的灯光。"),
    ("zh/chaye.txt", "这个地区的茶叶在春天采摘。最好的绿茶生长在山坡上，价格很高。"),
];

/// What somebody asks, and what answers it.
const QUESTIONS: [(&str, &str); 20] = [
    ("How high is the lighthouse?", "en/lighthouse.md"),
    ("When is the harbour master in his office?", "en/harbour.md"),
    ("Wie hoch ist der Leuchtturm?", "de/leuchtturm.txt"),
    ("Welche Gebühr zahlt ein Fahrzeug auf der Fähre?", "de/faehre.txt"),
    ("Quelle est la hauteur du phare ?", "fr/phare.html"),
    ("A quelle heure ouvre le marche aux poissons", "fr/marche.html"),
    ("¿Cuándo se construyó el faro del cabo?", "es/faro.md"),
    ("¿Cuándo empieza la cosecha de la uva?", "es/vino.md"),
    ("Quanto è alto il faro sul promontorio?", "it/faro.html"),
    ("Come si raccoglie l'oliva?", "it/olio.html"),
    ("Qual é a altura do farol?", "pt/farol.txt"),
    ("Quanto custa o pão?", "pt/pao.txt"),
    ("Koliko je visok svjetionik?", "hr/svjetionik.md"),
    ("Gdje kupiti kartu za trajekte?", "hr/trajekt.md"),
    ("灯台の高さは何メートルですか？", "ja/todai.txt"),
    ("魚市場は何時に開きますか", "ja/ichiba.txt"),
    ("灯塔有多高？", "zh/dengta.txt"),
    ("绿茶什么时候采摘？", "zh/chaye.txt"),
    ("lighthouse", "en/lighthouse.md"),
    ("svjetionika", "hr/svjetionik.md"),
];

#[test]
fn questions_in_nine_languages_find_their_passage_first() -> Outcome {
    let place = Place::new()?;
    for (path, text) in LIBRARY {
        place.write(path, text)?;
    }
    assert_eq!(place.counts()?, [LIBRARY.len() as u64, 0, 0, 0, 0]);
    for (question, expected) in QUESTIONS {
        let found = place.found(question)?;
        assert_eq!(found.first(), Some(&format!("local:papers/{expected}")), "{question} {found:?}");
    }
    Ok(())
}

#[test]
fn every_format_gives_title_text_and_date() -> Outcome {
    let place = Place::new()?;
    place.write(
        "pump.md",
        "---\ntitle: Pump manual\ndate: 2024-05-01\n---\n# Care\n\n## Oil\n\nChange the gearbox oil every year.",
    )?;
    place.write("notes.TXT", "The impeller has seven blades.")?;
    place.write(
        "news.html",
        "<head><title>News &amp; dates</title><meta name=date content=2023-02-03></head><p>The turbine was delivered.",
    )?;
    place.write(
        "sheet.pdf",
        pdf::document("Data sheet", "D:20220304120000Z", &["The compressor weighs 90 kilograms."]),
    )?;
    place.write("latin.txt", b"Der K\xFChler k\xFChlt.")?;
    let utf16: Vec<u8> = "\u{FEFF}Der Vergaser vergast.".encode_utf16().flat_map(u16::to_le_bytes).collect();
    place.write("wide.txt", utf16)?;
    assert_eq!(place.counts()?, [6, 0, 0, 0, 0]);
    let passage = |title: &str, path: &str, text: &str, date| Passage {
        title: title.to_owned(),
        url: format!("local:papers/{path}"),
        text: text.to_owned(),
        date,
    };
    for (question, expected) in [
        (
            "gearbox",
            passage("Pump manual", "pump.md", "Care › Oil\nChange the gearbox oil every year.", Some(date(2024, 5, 1))),
        ),
        ("impellers", passage("notes", "notes.TXT", "The impeller has seven blades.", None)),
        ("turbine", passage("News & dates", "news.html", "The turbine was delivered.", Some(date(2023, 2, 3)))),
        (
            "compressor",
            passage("Data sheet", "sheet.pdf", "The compressor weighs 90 kilograms.", Some(date(2022, 3, 4))),
        ),
        ("Kühler", passage("latin", "latin.txt", "Der Kühler kühlt.", None)),
        ("vergaser", passage("wide", "wide.txt", "Der Vergaser vergast.", None)),
    ] {
        assert_eq!(place.ask(question)?, [expected], "{question}");
    }
    Ok(())
}

#[test]
fn titles_and_headings_count_more_than_text() -> Outcome {
    let place = Place::new()?;
    place.write(
        "a.md",
        "# Various\n\nThis one mentions the carburettor once, among valves, belts and bearings of all kinds.",
    )?;
    place.write(
        "b.md",
        "# Engines\n\n## Carburettor\n\nIt mixes air with fuel, as people know who have cleaned one of them once.",
    )?;
    place.add()?;
    assert_eq!(place.found("carburettor")?, ["local:papers/b.md", "local:papers/a.md"]);
    Ok(())
}

#[test]
fn what_holds_all_rare_words_comes_before_what_repeats_one() -> Outcome {
    let place = Place::new()?;
    place.write("often.txt", "zirconium ".repeat(30))?;
    place.write("other.txt", "beryllium ".repeat(30))?;
    let filler = "and many more words about the weather, the garden and what there was for dinner that day. ".repeat(6);
    place.write("both.txt", format!("An alloy of zirconium with beryllium {filler}"))?;
    for n in 0..30 {
        place.write(&format!("filler{n}.txt"), format!("{n} {filler}"))?;
    }
    place.add()?;
    assert_eq!(place.found("zirconium and beryllium")?[0], "local:papers/both.txt");
    Ok(())
}

#[test]
fn nothing_in_a_question_is_an_operator() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The lighthouse has a lamp.")?;
    place.write("b.txt", "The harbour has a crane.")?;
    place.add()?;
    let index = place.index()?;
    for question in [
        "lighthouse AND NOT lamp",
        "\"lighthouse",
        "text:lighthouse",
        "-lighthouse",
        "+crane lighthouse",
        "(lighthouse",
        "lighthouse*",
        "light* lighthouse~2^9",
        "lighthouse\\",
        "[a TO lighthouse}",
        "LIGHTHOUSE\0\u{7}",
        "*:* lighthouse",
        "lighthouse \u{202e}\u{fffd}🏮",
        "{\"lighthouse\": 1}",
        "lighthouse'; DROP TABLE passages;--",
    ] {
        assert!(index.search(question, 5)?.iter().any(|found| found.url.ends_with("a.txt")), "{question}");
    }
    for question in ["", " ", "*", "\"\"", "()", "AND", "::", "?!…", "🏮🏮"] {
        assert_eq!(index.search(question, 5)?, [], "{question}");
    }
    assert_eq!(index.search("lighthouse crane", 0)?, []);
    assert_eq!(index.search("lighthouse crane", 1)?.len(), 1);
    let long = "lighthouse ".repeat(10_000) + &"灯".repeat(10_000) + &"x".repeat(100_000);
    assert_eq!(index.search(&long, 5)?.len(), 1);
    Ok(())
}

#[test]
fn only_what_changed_is_read_again() -> Outcome {
    let place = Place::new()?;
    place.write("keep.txt", "The anchor is heavy.")?;
    place.write("edit.txt", "The rudder is wooden.")?;
    place.write("sub/drop.txt", "The mast is broken.")?;
    assert_eq!(place.counts()?, [3, 0, 0, 0, 0]);
    assert_eq!(place.counts()?, [0, 0, 3, 0, 0]);

    // As long as before, a moment later: only its contents tell.
    place.write("edit.txt", "The keel is all iron.")?;
    fs::remove_file(place.documents().join("sub/drop.txt"))?;
    place.write("new.txt", "The winch is greased.")?;
    assert_eq!(place.counts()?, [1, 1, 1, 1, 0]);
    assert_eq!(place.found("rudder")?, [""; 0]);
    assert_eq!(place.found("mast")?, [""; 0]);
    assert_eq!(place.found("keel")?, ["local:papers/edit.txt"]);
    assert_eq!(place.found("winch")?, ["local:papers/new.txt"]);

    // Only touched: it says what it said.
    fs::File::options().append(true).open(place.documents().join("keep.txt"))?.set_modified(std::time::UNIX_EPOCH)?;
    assert_eq!(place.counts()?, [0, 0, 3, 0, 0]);
    assert_eq!(place.found("anchor")?, ["local:papers/keep.txt"]);
    Ok(())
}

#[test]
fn a_file_that_has_settled_is_not_even_opened() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    let settle =
        || fs::File::options().append(true).open(place.documents().join("a.txt"))?.set_modified(std::time::UNIX_EPOCH);
    settle()?;
    assert_eq!(place.counts()?, [1, 0, 0, 0, 0]);
    // Nobody does this, but it shows that the file is not read.
    place.write("a.txt", "The rudder is gone!!")?;
    settle()?;
    assert_eq!(place.counts()?, [0, 0, 1, 0, 0]);
    assert_eq!(place.found("rudder")?, [""; 0]);
    Ok(())
}

#[test]
fn what_cannot_be_read_is_skipped_with_a_reason() -> Outcome {
    let place = Place::new()?;
    place.write("good.txt", "The anchor is heavy.")?;
    place.write("binary.txt", b"\x7FELF\x02\x01\x01\0\0\0\0\0\0")?;
    place.write("empty.md", "\n\n")?;
    place.write("noise.pdf", b"%PDF-1.4\nnothing of the kind")?;
    let whole = pdf::document("T", "D:2022", &["The compressor weighs 90 kilograms."]);
    place.write("half.pdf", &whole[..whole.len() / 2])?;
    place.write("locked.pdf", pdf::locked())?;
    place.write("huge.txt", "")?;
    fs::File::options().write(true).open(place.documents().join("huge.txt"))?.set_len(65 * 1024 * 1024)?;
    let report = place.add()?;
    assert_eq!((report.added, report.passages), (1, 1));
    let mut reasons: Vec<_> = report
        .skipped
        .iter()
        .map(|(path, reason)| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), reason.as_str()))
        .collect();
    reasons.sort_unstable();
    let reason = |name: &str| reasons.iter().find(|(skipped, _)| skipped == name).map_or("", |(_, reason)| *reason);
    assert_eq!(reasons.len(), 6, "{reasons:?}");
    assert!(reason("binary.txt").contains("binary"), "{reasons:?}");
    assert!(reason("empty.md").contains("no text"), "{reasons:?}");
    assert!(reason("noise.pdf").contains("damaged"), "{reasons:?}");
    assert!(!reason("half.pdf").is_empty(), "{reasons:?}");
    assert!(reason("locked.pdf").contains("encrypted"), "{reasons:?}");
    assert!(reason("huge.txt").contains("64 MiB"), "{reasons:?}");

    // What was readable once and is not any more is no longer found.
    place.write("good.txt", b"\0\0\0\0")?;
    assert_eq!(place.counts()?, [0, 0, 0, 1, 7]);
    assert_eq!(place.found("anchor")?, [""; 0]);
    Ok(())
}

#[test]
fn damage_of_any_kind_to_a_pdf_ends_nothing() -> Outcome {
    let place = Place::new()?;
    let whole = pdf::document("Title", "D:20220304", &["The compressor weighs 90 kilograms.", "And more."]);
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..200 {
        let mut damaged = whole.clone();
        for _ in 0..rng.usize(1..12) {
            let at = rng.usize(..damaged.len());
            damaged[at] = rng.u8(..);
        }
        place.write(&format!("{n}.pdf"), damaged)?;
    }
    place.write("good.txt", "The anchor is heavy.")?;
    let report = place.add()?;
    assert_eq!(report.added + report.skipped.len() as u64, 201);
    assert!(!report.skipped.is_empty() && report.added > 1, "{report:?}");
    assert_eq!(place.found("anchor")?, ["local:papers/good.txt"]);
    Ok(())
}

#[test]
fn hidden_files_links_and_other_formats_are_passed_by() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    place.write(".hidden.txt", "The anchor is hidden.")?;
    place.write(".git/b.txt", "The anchor is stored.")?;
    place.write("c.rs", "// The anchor is code.")?;
    place.write("no_ending", "The anchor is nameless.")?;
    fs::write(place.root.path().join("outside.txt"), "The anchor is outside.")?;
    fs::create_dir(place.root.path().join("elsewhere"))?;
    fs::write(place.root.path().join("elsewhere/d.txt"), "The anchor is elsewhere.")?;
    std::os::unix::fs::symlink(place.root.path().join("outside.txt"), place.documents().join("link.txt"))?;
    std::os::unix::fs::symlink(place.root.path().join("elsewhere"), place.documents().join("folder"))?;
    assert_eq!(place.counts()?, [1, 0, 0, 0, 0]);
    assert_eq!(place.found("anchor")?, ["local:papers/a.txt"]);
    Ok(())
}

#[test]
fn addresses_say_nothing_about_the_machine() -> Outcome {
    let place = Place::new()?;
    place.write("Übersicht/a b#c?.txt", "The anchor is heavy.")?;
    place.add()?;
    assert_eq!(place.found("anchor")?, ["local:papers/%C3%9Cbersicht/a%20b%23c%3F.txt"]);

    let report = place.add_with_prefix("https://docs.example/")?;
    assert_eq!(report.changed, 1, "it is found under another address");
    assert_eq!(place.found("anchor")?, ["https://docs.example/%C3%9Cbersicht/a%20b%23c%3F.txt"]);
    assert_eq!(place.counts()?, [0, 0, 1, 0, 0], "the prefix is kept");
    assert_eq!(place.add_with_prefix("")?.changed, 1);
    assert!(place.found("anchor")?[0].starts_with("local:papers/"));
    Ok(())
}

#[test]
fn folders_are_listed_and_removed() -> Outcome {
    let place = Place::new()?;
    let other = place.root.path().join("letters");
    fs::create_dir(&other)?;
    fs::write(other.join("l.txt"), "The anchor in a letter.")?;
    place.write("a.md", "# A\n\nThe anchor is heavy.\n\n# B\n\nThe rudder is light.")?;
    assert_eq!(place.library().list()?, []);
    assert_eq!(place.library().remove(&place.documents())?, None);
    assert!(!place.index_folder().exists(), "looking creates nothing");

    place.add()?;
    let options = AddOptions { url_prefix: Some("https://letters.example/".into()) };
    place.library().add(&other, &options, &mut |_| ())?;
    let listed = place.library().list()?;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0].folder, fs::canonicalize(place.documents())?);
    assert_eq!((listed[0].documents, listed[0].passages, listed[0].bytes), (1, 2, 52));
    assert_eq!(listed[0].url_prefix, None);
    assert_eq!(listed[1].url_prefix, options.url_prefix);
    assert!(listed[0].indexed_at <= listed[1].indexed_at);

    assert_eq!(place.found("anchor")?.len(), 2);
    fs::remove_dir_all(&other)?;
    assert_eq!(place.library().remove(&other)?.as_ref(), Some(&listed[1]), "even when the folder is gone");
    assert_eq!(place.library().list()?, listed[..1]);
    assert_eq!(place.found("anchor")?, ["local:papers/a.md"]);
    assert!(!place.index()?.is_empty()?);
    place.library().remove(&place.documents())?;
    assert!(place.index()?.is_empty()?);
    assert_eq!(place.found("anchor")?, [""; 0]);
    Ok(())
}

#[test]
fn folders_that_overlap_or_are_missing_are_refused() -> Outcome {
    let place = Place::new()?;
    place.write("sub/a.txt", "The anchor is heavy.")?;
    place.add()?;
    let add = |folder: &Path| place.library().add(folder, &AddOptions::default(), &mut |_| ());
    assert!(matches!(add(&place.documents().join("sub")), Err(IndexError::Overlaps { .. })));
    assert!(matches!(add(place.root.path()), Err(IndexError::Overlaps { .. })));
    assert!(matches!(add(&place.root.path().join("no")), Err(IndexError::NoSuchFolder { .. })));
    assert!(matches!(add(&place.documents().join("sub/a.txt")), Err(IndexError::NoSuchFolder { .. })));
    assert_eq!(place.found("anchor")?.len(), 1);
    Ok(())
}

#[test]
fn progress_is_told_up_to_the_end() -> Outcome {
    let place = Place::new()?;
    for n in 0..10 {
        place.write(&format!("{n}.txt"), "The anchor is heavy.")?;
    }
    let mut told = Vec::new();
    place.library().add(&place.documents(), &AddOptions::default(), &mut |progress| told.push(progress))?;
    assert!(told.is_sorted_by_key(|progress| (progress.done, progress.passages)), "{told:?}");
    assert_eq!(told.last(), Some(&Progress { done: 10, total: 10, passages: 10 }));
    Ok(())
}

#[test]
fn a_reader_sees_what_another_commits() -> Outcome {
    let place = Place::new()?;
    assert!(Index::open(&place.index_folder())?.is_none());
    assert!(!place.index_folder().exists());
    place.write("a.txt", "The anchor is heavy.")?;
    place.add()?;
    let index = place.index()?;
    for n in 0..5 {
        assert_eq!(index.search("rudder", 9)?.len(), n);
        place.write(&format!("r{n}.txt"), "The rudder is light.")?;
        place.add()?;
    }
    place.library().remove(&place.documents())?;
    assert!(index.is_empty()?);
    Ok(())
}

#[test]
fn many_search_while_one_writes() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    place.add()?;
    let index = place.index()?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let searching: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let found = index.search("anchor", 5)?;
                        assert!(!found.is_empty(), "a document that is always there is always found");
                    }
                    Ok::<_, IndexError>(())
                })
            })
            .collect();
        for n in 0..8 {
            place.write(&format!("r{n}.txt"), "The rudder is light.")?;
            place.add()?;
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in searching {
            thread.join().map_err(|_| "a search panicked")??;
        }
        Ok(())
    })
}

#[test]
fn the_second_of_two_writers_is_told_so() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    let mut second = None;
    place.library().add(&place.documents(), &AddOptions::default(), &mut |_| {
        second = Some((place.add(), place.library().remove(&place.documents()), place.library().list()));
    })?;
    let (add, remove, list) = second.ok_or("no progress")?;
    assert!(matches!(add, Err(IndexError::Busy)), "{add:?}");
    assert!(matches!(remove, Err(IndexError::Busy)), "{remove:?}");
    assert!(list.is_ok(), "looking is always possible");
    assert!(IndexError::Busy.to_string().contains("another `index` command is running"));
    assert_eq!(place.counts()?, [0, 0, 1, 0, 0], "and the first is not disturbed");
    Ok(())
}

#[test]
fn what_is_damaged_is_an_error_and_not_empty() -> Outcome {
    let damage: [(&str, Change); 5] = [
        ("the list is cut off", |folder| {
            let meta = fs::read(folder.join("meta.json"))?;
            fs::write(folder.join("meta.json"), &meta[..meta.len() / 2])
        }),
        ("the list is empty", |folder| fs::write(folder.join("meta.json"), "")),
        ("segments are gone", |folder| each_segment_file(folder, |path| fs::remove_file(path))),
        ("segments are cut off", |folder| {
            each_segment_file(folder, |path| fs::File::options().write(true).open(path)?.set_len(10))
        }),
        ("segments are noise", |folder| {
            each_segment_file(folder, |path| fs::write(path, vec![0xA5; fs::metadata(path)?.len() as usize]))
        }),
    ];
    for (what, damage) in damage {
        let place = Place::new()?;
        place.write("a.txt", "The anchor is heavy.")?;
        place.add()?;
        damage(&place.index_folder())?;
        let searched = Index::open(&place.index_folder()).and_then(|index| match index {
            Some(index) => index.search("anchor", 5).map(Some),
            None => Ok(None),
        });
        assert!(matches!(searched, Err(IndexError::Unreadable(_))), "{what}: {searched:?}");
        assert!(place.add().is_err(), "{what}");
    }
    Ok(())
}

fn each_segment_file(folder: &Path, change: Change) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending != "json" && ending != "lock") {
            change(&path)?;
        }
    }
    Ok(())
}

#[test]
fn an_index_that_vanishes_under_a_reader_is_an_error() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    place.add()?;
    let index = place.index()?;
    fs::remove_dir_all(place.index_folder())?;
    assert!(matches!(index.search("anchor", 5), Err(IndexError::Unreadable(_))));
    Ok(())
}

#[test]
fn an_index_of_another_version_says_what_to_do() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    place.add()?;
    let meta = place.index_folder().join("meta.json");
    fs::write(&meta, fs::read_to_string(&meta)?.replace("adriaticum index 1", "adriaticum index 0"))?;
    let opened = Index::open(&place.index_folder()).map(|index| index.is_some());
    assert!(matches!(opened, Err(IndexError::OtherVersion)), "{opened:?}");
    let added = place.add();
    assert!(matches!(added, Err(IndexError::OtherVersion)), "{added:?}");
    assert!(IndexError::OtherVersion.to_string().contains("add your folders again"));
    Ok(())
}
