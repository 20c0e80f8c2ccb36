//! Folded stop words of each language. They decide the language of a question, and are then removed from it. Documents
//! keep theirs.

use std::collections::HashSet;
use std::sync::LazyLock;

use super::language::Language;

/// The word must be folded.
pub(super) fn is_stopword(language: Language, word: &str) -> bool {
    static LISTS: LazyLock<Vec<(Language, HashSet<&str>)>> =
        LazyLock::new(|| Language::SPACED.map(|of| (of, list(of).split_ascii_whitespace().collect())).into());

    LISTS.iter().any(|(of, list)| *of == language && list.contains(word))
}

/// Characters that are only grammatical or mark a question.
pub(super) fn is_stop_character(c: char) -> bool {
    "的了是在有和与或吗呢吧啊这那哪什么怎样谁几多少个们请为何如及其之也就很不能可以誰幾".contains(c)
}

fn list(language: Language) -> &'static str {
    match language {
        Language::English => {
            "a about after all also am an and any are as at be been before being but by can could did do does doing \
             for from had has have having he her him his how i if in into is it its just may me might more most must \
             my no not of on or our out over please s shall she should so some such t tell than that the their them \
             then there these they this those to under up us was we were what when where which while who whom whose \
             why will with would you your"
        }
        Language::German => {
            "aber alle als also am an auch auf aus bei beim bin bis bist bitte da damit dann das dass dein dem den \
             denn der des dich die dies diese diesem diesen dieser dieses dir doch du durch ein eine einem einen einer \
             eines er es fur gegen gibt hat habe haben hatte hier ich ihm ihn ihr ihre ihrem ihren im in ins ist ja \
             kann kein keine konnen lautet man mein meine mir mit muss nach nicht noch nur ob oder ohne sein seine \
             seit sich sie sind so soll uber um und uns unser unter viel viele vom von vor wann war waren warum was \
             welche welchem welchen welcher welches wem wen wenn wer werden wie wieso wieviel will wir wird wo woher \
             wohin worin wurde wurden zu zum zur zwischen"
        }
        Language::French => {
            "a ai ainsi alors apres as au aussi aux avant avec avez avoir avons c ce ceci cela ces cet cette ceux chez \
             ci comme comment d dans de depuis des donc dont du elle elles en entre es est et etaient etait ete etes \
             etre eu eux fait font il ils j je jusqu l la laquelle le lequel les lesquelles lesquels leur leurs lors \
             lui m ma mais me meme mes mon n ne ni nos notre nous on ont ou par pas peut peuvent plus pour pourquoi \
             qu quand que quel quelle quelles quels qui quoi s sa sans se sera ses si son sont sous sur t ta te tes \
             toi ton tous tout toute tres tu un une vers vos votre vous y"
        }
        Language::Spanish => {
            "a al algo algun alguna ante antes aquel aquella como con contra cual cuales cuando cuanta cuantas cuanto \
             cuantos de del desde donde durante e el ella ellas ellos en entre era eran es esa ese eso esta estaba \
             estan estar este esto estos fue fueron ha hace hacia han hasta hay la las le les lo los mas me mi mis \
             muy nada ni no nos nosotros o os otra otro para pero poco por porque puede pueden que quien quienes se \
             sea segun ser si sin sobre son soy su sus tambien te tiene tienen tu tus un una unas uno unos usted y ya \
             yo"
        }
        Language::Italian => {
            "a ad agli ai al alla alle allo anche avere c che chi ci coi col come con contro cosa cui d da dagli dai \
             dal dalla dalle dallo degli dei del dell della delle dello di dove due e ed era erano essere fa fra gli \
             ha hai hanno ho i il in io l la le lei li lo loro lui ma mi mia mio ne negli nei nel nella nelle nello \
             noi non nostro o per perche piu puo qual quale quali quando quanta quante quanti quanto quella quello \
             questa queste questi questo se sei si sia siamo sono sta stata stato su sua sue sugli sui sul sulla sulle \
             suo suoi tra tu tua tuo tutti tutto un una uno vi voi"
        }
        Language::Portuguese => {
            "a ao aos aquela aquele as ate com como da das de dela dele depois do dos e ela elas ele eles em entre era \
             eram essa esse esta estao estava este eu existe fica foi foram ha isso isto ja lhe mais mas me mesmo meu \
             minha muito na nas nem no nos nossa nosso num numa o onde os ou para pela pelas pelo pelos pode podem \
             por porque qual quais quando quanta quantas quanto quantos que quem sao se sem ser seu seus so \
             sobre sua suas tambem te tem ter teve tinha um uma umas uns voce voces"
        }
        Language::Croatian => {
            "a ako ali bi bih bila bile bili bilo bio biti cega cemu cija ciji cije da do dok ga gdje god i ih ili im \
             iz iza iznad ja je jedan jedna jedno jer jesam jesi jesu joj kada kad kako kamo kao ko koga koja koje \
             kojeg kojem koji kojih kojim koju koliki kolika koliko kome kroz li me mi mu na nad nakon nam nas ne \
             nego neka neki nema ni nije nisu no o od oko on ona one oni ono pa po pod pored prema pri prije s sa sam \
             samo se si smo ste sto su sve svi ta taj tako te ti to toga toj tu u uz va vam vas vi za zasto zbog"
        }
        Language::Japanese | Language::Chinese => "",
    }
}
