// An identity provider for the tests: npm's oidc-provider, which is certified. Every name in `people` can sign in; its
// pages request name, password (any) and consent.
// Its argument is JSON: port, console (its origin), people (claims by name), sid (whether ID tokens name sessions).
// GET /sign?claims=JSON returns a logout token of those claims; the `sid` "last" is that of the last sign-in.
import { SignJWT, exportJWK, generateKeyPair } from "jose";
import { Provider } from "oidc-provider";

const { port, console: origin, people, sid } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const { privateKey } = await generateKeyPair("RS256", { extractable: true });
const key = { ...await exportJWK(privateKey), kid: "test", alg: "RS256", use: "sig" };
const provider = new Provider(issuer, {
  jwks: { keys: [key] },
  clients: [{
    client_id: "adriaticum",
    client_secret: "a test's client",
    redirect_uris: [`${origin}/sign-in/provider/callback`],
    post_logout_redirect_uris: [`${origin}/sign-in`],
    backchannel_logout_uri: `${origin}/sign-in/provider/logout`,
    backchannel_logout_session_required: sid,
  }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  cookies: { keys: ["not a secret"] },
  features: { backchannelLogout: { enabled: true }, devInteractions: { enabled: true } },
  findAccount: (_, id) => people[id] && { accountId: id, claims: () => ({ sub: id, ...people[id] }) },
  httpOptions: () => ({ signal: AbortSignal.timeout(30_000) }), // the machine may be busy
  pkce: { required: () => true },
});
let lastSid;
provider.on("authorization.success", (context) => { lastSid = context.oidc.session.sidFor("adriaticum"); });
provider.use(async (context, next) => {
  if (context.path !== "/sign") return next();
  const claims = JSON.parse(context.query.claims);
  if (claims.sid === "last") claims.sid = lastSid;
  const header = { alg: "RS256", kid: "test", typ: "logout+jwt" };
  context.body = await new SignJWT({ iss: issuer, aud: "adriaticum", ...claims }).setProtectedHeader(header).sign(privateKey);
});
provider.on("server_error", (_, error) => console.error(error));
provider.on("backchannel.error", (_, error) => console.error(error));
provider.listen(port, "127.0.0.1", () => console.log("ready"));
