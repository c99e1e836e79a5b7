// The interface of the server, below `api/`.

/** A refusal by the server, with its HTTP status. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Kvick-Page": "1" },
    body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(`api/${path}`, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused(0, "The server cannot be reached.");
  }
  const reply = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, reply.error ?? `The server answered with status ${response.status}.`);
  return reply;
}

export const session = () => request("session");
export const login = (user, password) => request("login", { user, password });
export const logout = () => request("logout", {});
export const directives = () => request("directives");
export const commandsTable = () => request("commands-table");
export const subscribe = (subscriptions) => request("subscriptions", subscriptions);

/** Commands that one request may have. */
const COMMANDS_MAX = 64;

/** Runs commands, each a list of arguments. Returns one reply for each; errors are replies, too. */
export async function run(commands, database) {
  const replies = [];
  for (let at = 0; at < commands.length; at += COMMANDS_MAX) {
    const part = commands.slice(at, at + COMMANDS_MAX);
    const body = { commands: part.map((command) => command.map((word) => (typeof word === "number" ? String(word) : word))) };
    if (database !== undefined) body.database = database;
    replies.push(...(await request("commands", body)).replies);
  }
  return replies;
}

/** Runs one command. */
export const one = async (command, database) => (await run([command], database))[0];

/** Opens the event stream. Returns a function that closes it. */
export function events({ onSample, onMessages, onEnd }) {
  const source = new EventSource("api/events");
  source.addEventListener("sample", (event) => onSample(JSON.parse(event.data)));
  source.addEventListener("messages", (event) => onMessages(JSON.parse(event.data)));
  source.addEventListener("end", (event) => {
    source.close();
    onEnd(JSON.parse(event.data).reason);
  });
  source.addEventListener("error", () => {
    // The browser reconnects by itself unless the server has refused the stream.
    if (source.readyState === EventSource.CLOSED) onEnd(undefined);
  });
  return () => source.close();
}
