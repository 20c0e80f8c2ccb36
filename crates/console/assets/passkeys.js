// Passkeys: only a script can use the browser's authenticator. Without scripts, people sign in with password and code.

async function post(path, token, body) {
  const headers = { "content-type": "application/json", "x-form-token": token };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json().catch(() => ({ error: "The console did not respond. Please reload the page." }));
  if (answer.error) throw new Error(answer.error);
  return answer;
}

/** The browser's messages about a dismissed or failed prompt are not helpful. */
function explain(error) {
  return error instanceof DOMException ? "No passkey was used." : error.message;
}

async function run(root, ceremony) {
  const status = root.querySelector("[role=status]");
  const button = root.querySelector("button");
  status.textContent = "Follow your browser's instructions.";
  button.disabled = true;
  try {
    await ceremony();
  } catch (error) {
    status.textContent = explain(error);
    button.disabled = false;
  }
}

/** Enables the passkey element of that name; null if there is none or the browser does not support passkeys. */
function ready(name) {
  const root = document.querySelector(`[data-passkey=${name}]`);
  if (!root) return null;
  const able = window.PublicKeyCredential?.parseRequestOptionsFromJSON;
  root.querySelector("button").disabled = !able;
  if (!able) root.querySelector("[role=status]").textContent = "This browser cannot use passkeys here.";
  return able ? root : null;
}

/** Answers a challenge with a passkey. */
async function use(path, form, more) {
  const begun = await post(`${path}/begin`, form, {});
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(begun.options.publicKey);
  const credential = await navigator.credentials.get({ publicKey });
  return post(`${path}/finish`, form, { ...more, token: begun.token, credential: credential.toJSON() });
}

const signIn = ready("sign-in");
if (signIn) {
  signIn.querySelector("button").addEventListener("click", () => run(signIn, async () => {
    const { form, next } = signIn.dataset;
    const used = await use("/sign-in/passkey", form, { next });
    location.assign(used.location);
  }));
}

const confirming = ready("confirm");
if (confirming) {
  confirming.querySelector("button").addEventListener("click", () => run(confirming, async () => {
    await use("/account/confirmation", confirming.dataset.form, {});
    document.getElementById("confirm").submit();
  }));
}

const adding = ready("add");
if (adding) {
  adding.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = Object.fromEntries(new FormData(adding));
    run(adding, async () => {
      const begun = await post("/account/passkeys/begin", field.token, { password: field.password });
      const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(begun.options.publicKey);
      const credential = await navigator.credentials.create({ publicKey });
      const answer = { token: begun.token, name: field.name, credential: credential.toJSON() };
      location.assign((await post("/account/passkeys/finish", field.token, answer)).location);
    });
  });
}
