package admin

import (
	"context"
	"time"
)

// Watch has all proxies write Node.Report each second for so long. It waits for no row that is locked.
func (d *Database) Watch(ctx context.Context, lasts time.Duration) error {
	_, err := d.execute(ctx, `UPDATE rate_limit_nodes n SET watched = greatest(n.watched, now() + $1::interval)
FROM (SELECT node FROM rate_limit_nodes FOR UPDATE SKIP LOCKED) AS free WHERE n.node = free.node`, intervalOf(lasts))
	return err
}

// As runs commands that change something in one transaction, for a person whose name is to be in the log
// of changes, behind the role. As a trial, nothing stays changed.
func (d *Database) As(ctx context.Context, person string, trial bool, commands func() error) error {
	run := d.together
	if trial {
		run = d.undone
	}
	return run(ctx, func(w *work) {
		if w.execute("SELECT set_config('rate_limit.person', $1, true)", person); w.err == nil {
			w.fail(commands())
		}
	})
}

// actorSQL is the role, and in parentheses the person of As.
const actorSQL = "session_user || coalesce(' (' || nullif(current_setting('rate_limit.person', true), '') || ')', '')"
