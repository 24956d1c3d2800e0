package command

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var keysCommand = entry{
	use: "keys", kind: "key",
	short: "Makes, lists, changes, revokes and rotates API keys",
	commands: []entry{{
		use:   "create --user USER [--name NAME] [--tier TIER] [--expires WHEN]",
		short: "Makes an API key and prints it, only once",
		long: `Makes an API key and prints it on standard output. All other output goes to standard
error. The database has only a digest of the key, so nothing can print it again. With a tier of
its own, requests with the key have that tier, and not that of the user.`,
		example: `  caddy pg-ratelimit keys create --user acme --name production
  caddy pg-ratelimit keys create --user acme --name batch --tier bulk
  caddy pg-ratelimit keys create --user acme --expires 90d | vault kv put secret/acme key=-`,
		flags: []flag{
			{name: "user", value: "", usage: "the user that gets the key", needed: true},
			{name: "name", value: "", usage: "what the key is for"},
			{name: "tier", value: "", usage: "the tier of the key (default: that of the user)"},
			{name: "expires", value: "", read: anEnd, usage: "when the key ends: 90d, 2026-12-31 or never (default never)"},
		},
		do: func(c *call) error {
			return c.newKey(c.db.CreateKey(c.ctx, c.text("user"), c.text("name"), c.text("tier"), get[time.Time](c, "expires")))
		},
	}, {
		use:   "list [--user USER] [-n 100]",
		short: "Lists the API keys, by their first characters, and what they did",
		long:  `Lists the API keys, by their first characters. ` + recentHelp,
		example: `  caddy pg-ratelimit keys list
  caddy pg-ratelimit keys list --user acme --json`,
		flags: []flag{{name: "user", value: "", usage: "keys of this user only"}, most(100)},
		empty: says("There are no keys."),
		list:  asks(admin.KeysQuestion, keyFields, "user", "number"),
		below: func(c *call, p *page, all []line) {
			if most := c.number("number"); len(all) == most {
				p.print("There may be more than these %d: -n says how many.\n", most)
			}
		},
	}, {
		use:   "set ID SETTING=VALUE ...",
		short: "Changes settings of an API key, and its limits",
		long: `Changes the settings that are named and keeps the others. An empty value takes a setting back
to its default, and deletes an override. The change is one transaction. expires_at is a duration
such as 90d, a time, or never. RULE/LIMIT is another amount of a limit for this key, a number or
unlimited, and RULE/LIMIT.burst another burst.`,
		example: `  # a key with a tier of its own, and with that of its user again
  caddy pg-ratelimit keys set 7 tier=bulk
  caddy pg-ratelimit keys set 7 tier=

  # one key with more, and without it again
  caddy pg-ratelimit keys set 7 free/per_hour=5000
  caddy pg-ratelimit keys set 7 free/per_hour=`,
		args:   []reader{aKeyID},
		change: set(admin.SetKey),
	}, {
		use:     "revoke ID",
		short:   "Ends an API key now",
		example: "  caddy pg-ratelimit keys revoke 7",
		args:    []reader{aKeyID},
		do: func(c *call) error {
			key, err := c.db.RevokeKey(c.ctx, get[int64](c, "ID"))
			return show(c, key, err, func(p *page, key *admin.Row) {
				p.print("The key %d of the user %s is revoked since %s.\n", key.Get("id"), text(key.Text("user")), cell(key.Get("revoked_at")))
			})
		},
	}, {
		use:   "rotate ID [--grace 24h]",
		short: "Makes an API key in place of another one, and ends that one after a grace",
		long: `Makes an API key with the name, the tier, the end, the overrides and the bans of another one, and
prints it like keys create. The old key is valid until the grace has passed: if it has
leaked, give --grace 0s. Limits that count by key count both keys as one.`,
		example: `  caddy pg-ratelimit keys rotate 7 --grace 24h

  # the key has leaked
  caddy pg-ratelimit keys rotate 7 --grace 0s`,
		args:  []reader{aKeyID},
		flags: []flag{{name: "grace", value: "24h", read: aDuration, usage: "how long the old key stays valid"}},
		do: func(c *call) error {
			return c.newKey(c.db.RotateKey(c.ctx, get[int64](c, "ID"), get[time.Duration](c, "grace")))
		},
	}},
}

// aKeyID is the number of a key. The error does not repeat what may be a key.
func aKeyID(c *call, name, text string) (any, error) {
	id, err := numberOf("keys list")(c, name, text)
	if err != nil {
		err = errors.New("ID: must be the number of a key, as in: caddy pg-ratelimit keys list")
	}
	return id, err
}

// newKey prints a new key, unless err says that there is none. No other command prints a key.
func (c *call) newKey(key *admin.NewKey, err error) error {
	c.printsKey = true
	return show(c, key, err, func(p *page, key *admin.NewKey) {
		said := c.cmd.ErrOrStderr()
		fmt.Fprintf(said, "This is the key %d of the user %s. Nothing can show it again. It ends: %s.\n", key.Get("id"), text(key.Text("user")), or(key.Get("expires_at"), "never"))
		if old := key.Get("replaces"); old != nil {
			fmt.Fprintf(said, "The key %d, which it replaces, ends: %s.\n", old, cell(key.Get("replaced_at")))
		}
		p.print("%s\n", key.Key)
	})
}

// keyFields are the columns of a key in a list.
const keyFields = "ID id, KEY hint, USER user, TIER tier, NAME name, STATE state, EXPIRES expires_at=never, REVOKED revoked_at, REPLACED BY replaced_by, CREATED created_at" + recentFields

var bansCommand = entry{
	use:     "bans",
	short:   "Lists the networks, users and keys that are shut out",
	example: "  caddy pg-ratelimit bans",
	empty:   says("There are no bans."),
	list: func(c *call) ([]line, error) {
		bans, err := c.db.Bans(c.ctx)
		return lines(bans, err, banRow)
	},
}

var banCommand = entry{
	use:   "ban NETWORK",
	short: "Shuts a network or an address out",
	long: `Shuts a network or an address out. A network that is wider than an IPv4 /8 or an IPv6 /16,
which is more than any one organisation holds, needs --yes.`,
	example: `  caddy pg-ratelimit ban 192.0.2.0/24 --for 1h --reason scraping
  caddy pg-ratelimit ban 2001:db8::1`,
	flags: append([]flag{{name: "yes", value: false, usage: "ban the network however wide it is"}}, banFlags...),
	alone: []string{"for until"},
	args:  []reader{aNetwork},
	do: func(c *call) error {
		network := get[netip.Prefix](c, "NETWORK")
		if admin.IsWide(network) && !c.is("yes") {
			return &ratelimit.FieldError{Field: "NETWORK", Value: network.String(), Want: "an IPv4 /8 or an IPv6 /16 at most, which is as much as " +
				"one organisation holds, or given with --yes: a wider ban shuts out all kinds of clients"}
		}
		return c.ban("network", network.String())
	},
}

var unbanCommand = entry{
	use:     "unban NETWORK",
	short:   "Lifts the ban of a network or an address",
	example: "  caddy pg-ratelimit unban 192.0.2.0/24",
	args:    []reader{aNetwork},
	do: func(c *call) error {
		network := get[netip.Prefix](c, "NETWORK")
		return c.changed(c.db.Unban(c.ctx, "network", network.String()), "network", network.String(), "unbanned")
	},
}

// ban shuts a user or a network out, on the terms of banFlags, by the clock of the server, and prints the ban.
func (c *call) ban(kind, name string) error {
	until := get[time.Time](c, "until")
	if lasts := get[time.Duration](c, "for"); lasts > 0 {
		now, err := c.db.Now(c.ctx)
		if err != nil {
			return err
		}
		until = now.Add(lasts)
	}
	ban, err := c.db.Ban(c.ctx, kind, name, until, c.text("reason"))
	return show(c, ban, err, func(p *page, ban *admin.Ban) {
		lasts := "for ever"
		if ban.Until != nil {
			lasts = "until " + moment(*ban.Until)
		}
		p.print("The %s %s is banned %s.\n", ban.Kind, text(ban.Banned), lasts)
	})
}

var banRow = fields[admin.Ban]("KIND kind, BANNED banned, UNTIL until=never, BY banned_by, SINCE banned_at, REASON reason")
