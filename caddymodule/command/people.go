package command

import (
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

var tiersCommand = entry{
	use: "tiers", kind: "tier",
	short: "Lists and changes tiers: the plans that users are on",
	commands: []entry{{
		use:     "list",
		short:   "Lists the tiers, with how many users and keys are on each, and the rules for it",
		example: "  caddy pg-ratelimit tiers list",
		empty:   says("There are no tiers."),
		list:    asks("SELECT * FROM rate_limit_tier_states ORDER BY rank, tier", "TIER tier, RANK rank, USERS users, KEYS keys, RULES rules, COMMENT comment"),
	}, {
		use:   "set TIER [SETTING=VALUE ...]",
		short: "Makes a tier, or changes settings of one",
		long: `Makes a tier, or changes the settings that are named and keeps the others. An empty value takes a
setting back to its default.`,
		example: `  caddy pg-ratelimit tiers set pro
  caddy pg-ratelimit tiers set pro rank=2 comment='49 dollars a month'`,
		change: set(admin.SetTier),
	}, {
		use:   "rename TIER NEW",
		short: "Gives a tier another name",
		long: `Gives a tier another name. Its users, keys, overrides and rules go with it, in one transaction.
The setting "tier" in the configuration of a proxy keeps the old name.`,
		example: "  caddy pg-ratelimit tiers rename pro business",
		change:  renamed,
	}, {
		use:     "delete TIER",
		short:   "Deletes a tier that nothing uses",
		example: "  caddy pg-ratelimit tiers delete pro",
		change:  deleted,
	}},
}

// set calls a function that changes what the first argument names, which may be new.
func set(function string) func(c *call) (string, error) {
	return func(c *call) (string, error) {
		force := c.cmd.Flags().Lookup("force")
		return c.db.Set(c.ctx, function, c.args[0], c.args[1:], force != nil && force.Value.String() == "true")
	}
}

// renamed gives what the first argument names the name that is the second one.
func renamed(c *call) (string, error) {
	return "renamed to " + text(c.args[1]), c.db.Rename(c.ctx, c.kind, c.args[0], c.args[1])
}

// deleted deletes what the first argument names.
func deleted(c *call) (string, error) { return "deleted", c.db.Delete(c.ctx, c.kind, c.args[0]) }

// recentHelp says what recentFields are.
const recentHelp = `With a history, the list has
the requests of today and of this month in UTC, how many of this month a limit refused (429),
how many were refused with 401 or 403, the last request, and when all limits have their full
quota again, at the latest.`

// recentFields are what a user or a key did, if usage was recorded.
const recentFields = " | TODAY today, MONTH this_month, 429 limited, 401/403 denied, LAST last_request, RESETS resets"

var usersCommand = entry{
	use: "users", kind: "user",
	short: "Shows, changes, bans and deletes users",
	commands: []entry{{
		use:     "get USER",
		short:   "Shows a user: tier, keys, overrides, bans, usage, and what is used of the limits",
		example: "  caddy pg-ratelimit users get acme",
		do: func(c *call) error {
			user, err := c.db.User(c.ctx, c.args[0])
			return show(c, user, err, addUser)
		},
	}, {
		use:   "list [--tier TIER] [--sort last] [-n 100]",
		short: "Lists the users, and what they did",
		long: `Lists the users in the order of their names, or, with --sort last, those first that have sent no request for the
longest time. STATE is banned, blocked (by an override of 0), or active. ` + recentHelp,
		example: `  caddy pg-ratelimit users list
  caddy pg-ratelimit users list --tier free -n 1000 --json`,
		flags: []flag{
			{name: "tier", value: "", usage: "users of this tier only"},
			{name: "sort", value: admin.ByName, usage: "name, or last for those without requests first", choices: []string{admin.ByName, admin.ByLast}},
			most(100),
		},
		empty: says("There are no users."),
		list: func(c *call) ([]line, error) {
			return asks(admin.UsersQuestion(c.text("sort")), "USER user, TIER tier, STATE state"+recentFields, "tier", "number")(c)
		},
	}, {
		use:   "set USER SETTING=VALUE ...",
		short: "Makes a user, or changes settings of one",
		long: `Makes a user, or changes the settings that are named and keeps the others. An empty value
takes a setting back to its default, and deletes an override. A new user needs a tier. The
change is one transaction. tier_until is a duration such as 90d, a time, or never. RULE/LIMIT is
another amount of a limit for this user, a number or unlimited, and RULE/LIMIT.burst another burst.`,
		example: `  caddy pg-ratelimit users set acme tier=free
  caddy pg-ratelimit users set acme tier=pro tier_until=30d
  caddy pg-ratelimit users set acme period_start=2026-01-31 time_zone=Europe/Berlin

  # one user with more, and without it again
  caddy pg-ratelimit users set acme free/per_hour=5000
  caddy pg-ratelimit users set acme free/per_hour=`,
		change: set(admin.SetUser),
	}, {
		use:   "delete USER",
		short: "Deletes a user with its keys and overrides",
		long: `Deletes a user with its API keys, its overrides and the bans of its keys, asks nothing, and
prints what went. Proxies refuse the keys within a second. A ban of the user stays, and so
does the history. To shut a user out and keep the keys, see users ban.`,
		example: "  caddy pg-ratelimit users delete acme",
		do: func(c *call) error {
			gone, err := c.db.DeleteUser(c.ctx, c.args[0])
			return show(c, gone, err, addDeleted)
		},
	}, {
		use:   "ban USER",
		short: "Shuts a user out, with all its keys",
		example: `  caddy pg-ratelimit users ban acme --for 24h --reason 'ticket 4711'
  caddy pg-ratelimit users ban acme`,
		flags: banFlags, alone: []string{"for until"},
		do: func(c *call) error { return c.ban("user", c.args[0]) },
	}, {
		use:     "unban USER",
		short:   "Lifts the ban of a user",
		example: "  caddy pg-ratelimit users unban acme",
		change:  func(c *call) (string, error) { return "unbanned", c.db.Unban(c.ctx, "user", c.args[0]) },
	}},
}

const userFields = "user user, tier tier=- (not in the table of users) | created created_at, changed updated_at, " +
	"tier until tier_until=never, billing period period_start, time zone time_zone, comment comment | requests today today, " +
	"this month this_month, refused refused, by a limit (429) limited, with 401 or 403 denied, last request last_request, resets resets"

func addUser(p *page, u admin.User) {
	p.facts(fields[admin.Row](userFields)(&u.Row))
	addOwned(p, &u)
	addSection(p, "Used", u.Usage, usageRow)
}

// addOwned adds the keys, overrides and bans of a user.
func addOwned(p *page, u *admin.User) {
	addSection(p, "Keys", u.Keys, fields[admin.Row](keyFields))
	addSection(p, "Overrides", u.Overrides, func(o *admin.Row) row {
		holder := "the user"
		if id := o.Get("key_id"); id != nil {
			holder = "key " + cell(id)
		}
		return row{
			"LIMIT", o.Text("rule") + "/" + o.Text("limit"), "AMOUNT", or(o.Get("events"), "unlimited"), "FOR", holder, "FROM", o.Get("valid_from"),
			"UNTIL", or(o.Get("valid_until"), "never"), "REASON", o.Get("reason"),
		}
	})
	addSection(p, "Bans", u.Bans, banRow)
}

func addDeleted(p *page, gone admin.User) {
	p.print("The user %s is deleted. The tier was %s.\n", text(gone.User), cell(gone.Tier))
	if len(gone.Keys)+len(gone.Overrides) > 0 {
		p.print("With the user went:\n")
	}
	addOwned(p, &gone)
	if gone.Get("still_banned") == true {
		p.print("\nThe user is still banned. To lift that: caddy pg-ratelimit users unban %s\n", text(gone.User))
	}
}
