// An identity provider for the tests: npm's oidc-provider, which is certified. Anybody can sign in under any name that
// `people` has; its own pages ask for name, password (any) and consent.
// Its one argument is JSON: port, console (its origin), people (claims by name).
import { Provider } from "oidc-provider";

const { port, console: origin, people } = JSON.parse(process.argv[2]);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: "adriaticum",
    client_secret: "a test's client",
    redirect_uris: [`${origin}/sign-in/provider/callback`],
    post_logout_redirect_uris: [`${origin}/sign-in`],
    backchannel_logout_uri: `${origin}/sign-in/provider/logout`,
    backchannel_logout_session_required: true,
  }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  cookies: { keys: ["not a secret"] },
  features: { backchannelLogout: { enabled: true }, devInteractions: { enabled: true } },
  findAccount: (_, id) => people[id] && { accountId: id, claims: () => ({ sub: id, ...people[id] }) },
  httpOptions: () => ({ signal: AbortSignal.timeout(30_000) }), // the machine may be busy
  pkce: { required: () => true },
});
provider.on("server_error", (_, error) => console.error(error));
provider.on("backchannel.error", (_, error) => console.error(error));
provider.listen(port, "127.0.0.1", () => console.log("ready"));
