package command

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

var keysCommand = commandSpec{
	use: "keys", noun: "key",
	short: "Creates, lists, changes, revokes and rotates API keys",
	commands: []commandSpec{{
		use:   "create --user USER",
		short: "Creates an API key, and prints it only once",
		long: `The command prints the key on standard output, and all other text on standard error. The key
cannot be printed again, because the database stores only a digest.`,
		example: `keys create --user acme --name production
keys create --user acme --expires 90d | vault kv put secret/acme key=-`,
		flags: []flag{
			{name: "user", usage: "the user that gets the key", required: true},
			{name: "name", usage: "what the key is for"},
			{name: "tier", usage: "the key's tier (default: the user's tier)"},
			{
				name:  "expires",
				kind:  futureTime,
				usage: "when the key ends: 90d, 2026-12-31 or never (default never)",
			},
		},
		beforeSQL: `SELECT rate_limit_set('rate_limit_api_keys', '{digest}', to_jsonb(k), NULL)
FROM (SELECT @digest::bytea AS digest, @hint::text AS hint, @user::text AS user_id, @name::text AS name,
		@tier::text AS tier, @expires::timestamptz AS expires_at) AS k`,
		sql:   newKeySQL,
		runGo: newKey,
	}, {
		use:   "list",
		short: "Lists the API keys (only their first characters), and with a history their requests",
		flags: []flag{{name: "user", usage: "only keys of this user"}, linesFlag("100")},
		sql: `SELECT k.*, r.* FROM (SELECT * FROM rate_limit_key_states
	WHERE @user::text IS NULL OR user_id = @user ORDER BY id LIMIT @number::bigint) AS k
LEFT JOIN LATERAL rate_limit_recent(k.user_id, k.id) AS r ON true`,
	}, {
		use:   "set ID SETTING=VALUE ...",
		short: "Changes settings of an API key, and its limits",
		long: `expires_at is a duration such as 90d, a time, or never. RULE/LIMIT overrides the amount of a
limit for this key, and RULE/LIMIT.burst the burst. revoked_at= makes a revoked key valid again.`,
		example: `keys set 7 tier=bulk free/per_hour=5000
keys set 7 tier= free/per_hour=`,
		runGo: setter("rate_limit_key"),
	}, {
		use:       "revoke ID",
		short:     "Ends an API key now",
		singleRow: true,
		beforeSQL: "SELECT rate_limit_revoke_key(@ID::bigint)",
		sql:       "SELECT * FROM rate_limit_key_states WHERE id = @ID::bigint",
	}, {
		use:   "rotate ID",
		short: "Creates an API key that replaces another, and ends the other after a grace period",
		long: `The new key has the name, the tier, the end, the overrides and the bans of the old key. Limits
that count by key count both keys as one. If the old key has leaked, use --grace 0s.`,
		flags: []flag{
			{name: "grace", value: "24h", kind: duration, usage: "how long the old key stays valid"},
		},
		beforeSQL: "SELECT rate_limit_rotate_key(@ID::bigint, @grace::interval, @digest::bytea, @hint)",
		sql:       newKeySQL,
		runGo:     newKey,
	}},
}

const newKeySQL = `SELECT s.*, o.id AS replaces, least(o.revoked_at, o.expires_at) AS replaced_at
FROM rate_limit_api_keys k JOIN rate_limit_key_states s ON s.id = k.id
LEFT JOIN rate_limit_api_keys o ON o.replaced_by = k.id WHERE k.digest = @digest::bytea`

// newKey creates a random API key, stores its digest by the command's beforeSQL, and prints the key. No other
// function of this package prints a key.
func newKey(c *invocation) error {
	key, err := policy.NewKey()
	if err != nil {
		return err
	}
	c.values["digest"], c.values["hint"] = `\x`+policy.Digest(key), policy.Hint(key)
	rows, err := c.change(c.sql)
	if err != nil {
		return err
	}
	c.printsKey = true
	created := rows[0]
	if c.json {
		return c.show(slices.Concat(created[:len(created)-1], json.RawMessage(`,"key":"`+key+`"}`)))
	}
	cells := map[string]string{}
	for _, f := range fieldsOf(created) {
		cells[f.name] = cell(f.value)
	}
	stderr := c.cmd.ErrOrStderr()
	fmt.Fprintf(stderr, "This is the key %s of the user %s. Nothing can show it again. It ends: %s.\n",
		cells["id"], cells["user_id"], cells["expires_at"])
	if cells["replaces"] != noValue {
		fmt.Fprintf(stderr, "The key %s, which it replaces, ends: %s.\n", cells["replaces"],
			cells["replaced_at"])
	}
	return c.printf("%s\n", key)
}
