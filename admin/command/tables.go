package command

import (
	"errors"
	"io"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

var migrateCommand = commandSpec{
	use:   "migrate [--print | --show | --citus --shards N]",
	short: "Creates the tables, or upgrades them in place",
	long: `The command can run repeatedly, and while proxies use the tables. The role must be able to create
tables, and to be the owner of existing ones. All changes are one transaction. Tables of a newer version
stay as they are. The number of shards cannot change later. It names roles with rights that
rate_limit_grant has not granted.`,
	example: `migrate --dsn postgres://admin@db/limits
migrate --print > schema.sql
migrate --citus --shards 16 --dsn postgres://admin@coordinator/limits`,
	offline:   true,
	exclusive: []string{"print show", "show citus"},
	flags: []flag{
		toggle("print", "print the SQL, for psql, and change nothing"),
		toggle("show", "print what would run in the database, and change nothing"),
		toggle("citus", "distribute the counters over the servers of Citus"),
		{name: "shards", value: 0,
			usage: "number of shards of the counters: one or two for each future server"},
	},
	runGo: func(c *invocation) error {
		if c.boolFlag("print") {
			_, err := io.WriteString(c.cmd.OutOrStdout(), schema.File)
			return err
		}
		shards, err := c.cmd.Flags().GetInt("shards")
		if err == nil && c.boolFlag("citus") != (shards > 0) {
			err = invalid("--shards", c.flag("shards"), "1 or more with --citus, and not given without it")
		}
		if err == nil {
			err = c.connect()
		}
		if err != nil {
			return err
		}
		defer c.close()
		if c.boolFlag("show") {
			state, err := migrate.Read(c.ctx, c.conn)
			if err == nil && !errors.Is(state.Err(), schema.ErrMissing) {
				err = state.Err()
			}
			if err == nil {
				_, err = io.WriteString(c.cmd.OutOrStdout(), migrate.Pending(state))
			}
			return err
		}
		c.lockWaitStart = time.Now()
		changes, err := migrate.Run(c.ctx, c.conn, shards)
		if changes.Tables == "" {
			return c.describeError(err)
		}
		return errors.Join(c.describeError(err), c.show(changes))
	},
}

var upkeepCommand = commandSpec{
	use:   "upkeep",
	short: "Creates partitions of the history, and deletes data past its retention",
	long: `Proxies with a history do this about once a minute, so the command is only for times when no such
proxy runs. It deletes up to 20,000 rows of each kind. If another process does the upkeep,
the column WHAT has the value busy.`,
	sql: history.UpkeepSQL("0"),
}
