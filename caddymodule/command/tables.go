package command

import (
	"errors"
	"io"
	"net/netip"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var migrateCommand = entry{
	use:   "migrate [--print | --citus --shards N]",
	short: "Creates the tables, or upgrades them in place",
	long: `Creates the tables of the counters, of the history and of the policy, or upgrades them in
place and keeps their rows. The command may run any number of times, also while proxies use the
tables. The role must be able to create tables. --print only prints the SQL, for psql.

On the coordinator of Citus, --citus spreads the counters over the servers, in so many shards. The
number cannot change later. Proxies find the shards when they start.`,
	example: `  caddy pg-ratelimit migrate --dsn postgres://admin@db/limits
  caddy pg-ratelimit migrate --print > schema.sql
  caddy pg-ratelimit migrate --citus --shards 16 --dsn postgres://admin@coordinator/limits`,
	of: ofNone,
	flags: []flag{
		{name: "print", value: false, usage: "print the SQL and change nothing"},
		{name: "citus", value: false, usage: "spread the counters over the servers of Citus"},
		{name: "shards", value: 0, usage: "how many shards the counters have with --citus; one or two for each server that there will ever be"},
	},
	together: "citus shards",
	do: func(c *call) error {
		if c.is("print") {
			_, err := io.WriteString(c.cmd.OutOrStdout(), admin.MigrationSQL())
			return err
		}
		return c.run(ofCounters, migrate)
	},
}

func migrate(c *call) error {
	shards := c.number("shards")
	if c.is("citus") && shards == 0 {
		return errors.New("--shards: 0: must be 1 or more")
	}
	m, err := c.migrate(shards)
	if m == (admin.Migration{}) {
		return err
	}
	return errors.Join(err, show(c, m, nil, func(p *page, m admin.Migration) {
		p.print("tables of the counters: %s\ntables of the history: %s\ntables of the policy: %s\n", m.Counters, m.History, m.Policy)
		if m.Shards != "" {
			p.print("shards of the counters: %s\n", m.Shards)
		}
	}))
}

// migrate makes the tables of each dataset in its database, and so many shards of the counters.
func (c *call) migrate(shards int) (admin.Migration, error) {
	all, err := c.databases()
	if err != nil || all.same() {
		return c.db.MigrateShards(c.ctx, shards)
	}
	var m admin.Migration
	for _, of := range []dataset{ofCounters, ofPolicy, ofHistory} {
		if err := c.open(of); err != nil {
			return m, err
		}
		did, err := c.db.MigrateShards(c.ctx, shards)
		shards = 0 // the counters are first
		switch of {
		case ofCounters:
			m.Counters = did.Counters
			m.Shards = did.Shards
		case ofPolicy:
			m.Policy = did.Policy
		case ofHistory:
			m.History = did.History
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

var upkeepCommand = entry{
	use:   "upkeep",
	short: "Makes partitions of the audit log, adds metrics up, and deletes what is past its retention",
	long: `Does what the history needs about once a minute, and prints what it did: it makes the
partitions of the audit log for today and the next 7 days, adds the metrics up to hours and
days, and deletes what is past its retention, up to 20,000 rows of each kind. Proxies with a
history do the same by themselves, so the command is for when none runs. It may run at any
time. If another process does the upkeep, it does nothing.

A partition that is past its retention and in use is skipped, and goes the next time.`,
	example: "  caddy pg-ratelimit upkeep\n  caddy pg-ratelimit upkeep --json",
	of:      ofHistory,
	do: func(c *call) error {
		u, err := c.db.Upkeep(c.ctx)
		if err != nil && u.IsNothing() {
			return err
		}
		// After a failure, the rest was done nevertheless.
		return errors.Join(err, show(c, u, nil, addUpkept))
	},
}

func addUpkept(p *page, u admin.Upkept) {
	if u.Busy {
		p.print("Another process does the upkeep.\n")
		return
	}
	var facts row
	for i, names := range [][]string{u.Made, u.Detached, u.Dropped, u.Skipped} {
		for _, name := range names {
			facts = append(facts, []string{"made", "detached", "dropped", "skipped"}[i], name)
		}
	}
	p.facts(append(facts, "rows deleted", u.Deleted))
}

var forgetCommand = entry{
	use:   "forget [--user USER | --ip ADDRESS | --key KEY | --key-id ID] [--account] [--dry-run]",
	short: "Deletes all that is stored about a person",
	long: `Deletes the rows about a user, an address or an API key, in one transaction: counters, rows of
the audit log, usage, overrides and bans. It prints how many rows of each table. --dry-run only
counts them. --user includes the API keys of the user.

The users and API keys themselves go with --account only. Without it, their next request makes
new rows. --key can also be the key of any counter, such as a session; "-" reads it from standard
input. --ip is one client: of IPv6, all addresses of the same /64.

Not deleted are: files of archive; lines of the log of changes, which go after 30 days; rows of
the audit log that have a wider network in place of the address; and counters whose key is a
digest of several things. These counters expire by themselves.

The tables of the history can be changed by their owner only.`,
	example: `  caddy pg-ratelimit forget --user acme --dry-run
  caddy pg-ratelimit forget --user acme --account
  caddy pg-ratelimit forget --ip 192.0.2.1
  caddy pg-ratelimit forget --key - < key.txt`,
	of: ofAll,
	flags: []flag{
		{name: "user", value: "", usage: "a user, with all its API keys"},
		{name: "ip", value: "", read: anAddress, usage: "the address of a client"},
		{name: "key", value: "", read: aSecret, usage: `an API key, or the key of a counter; "-" reads it from standard input`},
		aKey("an API key by its number"),
		{name: "account", value: false, usage: "delete the user and the API keys as well"},
		{name: "dry-run", value: false, usage: "count the rows, and delete none"},
	},
	alone: []string{"user ip key key-id"},
	do: func(c *call) error {
		who := admin.Person{User: c.text("user"), Key: get[string](c, "key"), Address: get[netip.Addr](c, "ip"), KeyID: get[int64](c, "key-id")}
		if who == (admin.Person{}) {
			return &ratelimit.FieldError{Field: "--user, --ip, --key or --key-id", Want: "given: it says who is to be forgotten"}
		}
		forgotten, err := c.db.Forget(c.ctx, &who, c.is("account"), c.is("dry-run"))
		return show(c, forgotten, err, addForgotten)
	},
}

func addForgotten(p *page, f *admin.Forgetting) {
	header := "DELETED"
	if f.DryRun {
		header = "WOULD BE DELETED"
	}
	addList(p, f.Tables, fields[admin.Row]("TABLE table, "+header+" rows"), "There are no tables.")
	for _, note := range f.Notes {
		p.print("\n%s\n", note)
	}
}
