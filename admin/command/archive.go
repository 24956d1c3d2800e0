package command

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pgratelimit/pg-ratelimit/admin/archive"
)

var archiveCommand = commandSpec{
	use:   "archive --before AGE --to DESTINATION",
	short: "Copies old days of the audit log and the ledger to Parquet files",
	long: `Each day in UTC becomes a file of the audit log and one of the ledger, such as
audit/2026/08/2026-08-01.parquet, which the command compares with the table before it stores it.
Rows of the day that arrive later go to 2026-08-01-2.parquet. The next run continues an interrupted
run. Run the command once a day, as the owner of the tables, and not over a pooler.

The credentials for S3 come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN,
from the profile AWS_PROFILE of ~/.aws/credentials, or from the machine's role. AWS_REGION is the
region, and AWS_ENDPOINT_URL the address of a server other than Amazon's.

Upkeep deletes days that are past their retention, archived or not. Both retentions should be at
least 7 days longer than --before.`,
	example: `archive --before 60d --to /srv/archive
archive --before 90d --to s3://logs/limits --drop`,
	flags: []flag{
		{name: "before", kind: pastTime, required: true,
			usage: "archive days that ended before: an age such as 60d, or a time such as 2026-08-01"},
		{name: "to", usage: "an existing folder, or s3://BUCKET/PREFIX", required: true},
		toggle("drop", "drop archived days that are past their retention"),
	},
	runGo: func(c *invocation) error {
		to, err := archive.NewDestination(c.flag("to"))
		if err != nil {
			return err
		}
		return c.archive(archive.Options{Destination: to, Before: c.moment("before"),
			Drop: c.boolFlag("drop")})
	},
}

// archiveMemory is the soft limit of Go's memory during an archive run, in bytes.
const archiveMemory = 100 << 20

// archive archives days until all are archived or a signal arrives. It prints a line for each day as soon as
// the day is archived. With --json, it prints all days at the end instead.
func (c *invocation) archive(o archive.Options) error {
	ctx, stop := c.untilSignal()
	defer stop()
	limit := debug.SetMemoryLimit(-1) // a negative argument changes nothing and returns the limit
	debug.SetMemoryLimit(min(limit, archiveMemory))
	defer debug.SetMemoryLimit(limit)
	o.Warn = func(err error) { fmt.Fprintln(c.cmd.ErrOrStderr(), "Warning:", err) }
	if !c.json {
		p := printer{continues: true}
		o.Report = func(d archive.Day) { _ = stream(c, &p, d) }
	}
	days, err := archive.Run(ctx, c.conn, o)
	if err != nil {
		err = errors.New(err.Error()) // without a PgError, which describeError would rewrite
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted: the next run continues")
	}
	switch {
	case c.json:
		err = errors.Join(err, c.show(append([]archive.Day{}, days...)))
	case len(days) == 0 && err == nil:
		err = c.printf(
			"There is no day to archive that ended before %s.\n",
			displayTime(o.Before),
		)
	}
	return err
}
