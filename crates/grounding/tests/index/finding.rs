//! The passages that questions find.

use grounding::Passage;
use jiff::civil::date;

use crate::{Fixture, TestResult, pdf};

/// Two documents in each language, so that the language alone does not decide.
const DOCUMENTS: [(&str, &str); 18] = [
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

/// Questions, and the document that answers each.
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
fn questions_in_nine_languages_find_their_passage_first() -> TestResult {
    let fixture = Fixture::new()?;
    for (path, text) in DOCUMENTS {
        fixture.write(path, text)?;
    }
    assert_eq!(fixture.add_counts()?, [DOCUMENTS.len() as u64, 0, 0, 0, 0]);
    for (question, expected) in QUESTIONS {
        let found = fixture.found_urls(question)?;
        assert_eq!(found.first(), Some(&format!("local:papers/{expected}")), "{question} {found:?}");
    }
    Ok(())
}

#[test]
fn every_format_gives_title_text_and_date() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write(
        "pump.md",
        "---\ntitle: Pump manual\ndate: 2024-05-01\n---\n# Care\n\n## Oil\n\nChange the gearbox oil every year.",
    )?;
    fixture.write("notes.TXT", "The impeller has seven blades.")?;
    fixture.write(
        "news.html",
        "<head><title>News &amp; dates</title><meta name=date content=2023-02-03></head><p>The turbine was delivered.",
    )?;
    fixture.write(
        "sheet.pdf",
        pdf::document("Data sheet", "D:20220304120000Z", &["The compressor weighs 90 kilograms."]),
    )?;
    fixture.write("latin.txt", b"Der K\xFChler k\xFChlt.")?;
    let utf16: Vec<u8> = "\u{FEFF}Der Vergaser vergast.".encode_utf16().flat_map(u16::to_le_bytes).collect();
    fixture.write("wide.txt", utf16)?;
    assert_eq!(fixture.add_counts()?, [6, 0, 0, 0, 0]);
    let passage = |title: &str, path: &str, text: &str, date| Passage {
        title: title.to_owned(),
        url: format!("local:papers/{path}"),
        text: text.to_owned(),
        date,
        score: Some(1.0),
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
        assert_eq!(fixture.ask(question)?, [expected], "{question}");
    }
    Ok(())
}

#[test]
fn titles_and_headings_count_more_than_text() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write(
        "a.md",
        "# Various\n\nThis one mentions the carburettor once, among valves, belts and bearings of all kinds.",
    )?;
    fixture.write(
        "b.md",
        "# Engines\n\n## Carburettor\n\nIt mixes air with fuel, as people know who have cleaned one of them once.",
    )?;
    fixture.add()?;
    assert_eq!(fixture.found_urls("carburettor")?, ["local:papers/b.md", "local:papers/a.md"]);
    Ok(())
}

#[test]
fn a_passage_with_all_rare_words_ranks_above_repetitions_of_one() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("often.txt", "zirconium ".repeat(30))?;
    fixture.write("other.txt", "beryllium ".repeat(30))?;
    let filler = "and many more words about the weather, the garden and what there was for dinner that day. ".repeat(6);
    fixture.write("both.txt", format!("An alloy of zirconium with beryllium {filler}"))?;
    for n in 0..30 {
        fixture.write(&format!("filler{n}.txt"), format!("{n} {filler}"))?;
    }
    fixture.add()?;
    assert_eq!(fixture.found_urls("zirconium and beryllium")?[0], "local:papers/both.txt");
    Ok(())
}

#[test]
fn questions_have_no_operators() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The lighthouse has a lamp.")?;
    fixture.write("b.txt", "The harbour has a crane.")?;
    fixture.add()?;
    let index = fixture.index()?;
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
        assert!(
            index.search(question, None, 5)?.iter().any(|found| found.passage.url.ends_with("a.txt")),
            "{question}"
        );
    }
    for question in ["", " ", "*", "\"\"", "()", "AND", "::", "?!…", "🏮🏮"] {
        assert_eq!(index.search(question, None, 5)?, [], "{question}");
    }
    assert_eq!(index.search("lighthouse crane", None, 0)?, []);
    assert_eq!(index.search("lighthouse crane", None, 1)?.len(), 1);
    let long = "lighthouse ".repeat(10_000) + &"灯".repeat(10_000) + &"x".repeat(100_000);
    assert_eq!(index.search(&long, None, 5)?.len(), 1);
    Ok(())
}
