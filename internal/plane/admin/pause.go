package admin

import (
	"context"
	"time"
)

// Pause suspends all limits of the database, of rules and of configurations, until its time. Bans and
// block rules hold.
type Pause struct {
	Until    time.Time `json:"until"`
	Reason   *string   `json:"reason"`
	PausedAt time.Time `json:"paused_at"`
	PausedBy string    `json:"paused_by"`
}

// Pause pauses all limits from now on. It replaces a pause that is in force. reason may be "".
func (d *Database) Pause(ctx context.Context, lasts time.Duration, reason string) (*Pause, error) {
	return row[Pause](ctx, d, `INSERT INTO rate_limit_pause (until, reason, paused_by) VALUES (now() + $1::interval, nullif($2::text, ''), `+actorSQL+`)
ON CONFLICT (id) DO UPDATE SET until = excluded.until, reason = excluded.reason, paused_at = now(), paused_by = excluded.paused_by
RETURNING until, reason, paused_at, paused_by`, intervalOf(lasts), reason)
}

// Resume ends the pause.
func (d *Database) Resume(ctx context.Context) error {
	ended, err := value[bool](ctx, d, "DELETE FROM rate_limit_pause RETURNING until > now()")
	if err == nil && (ended == nil || !*ended) {
		err = notFound("limits: not paused")
	}
	return err
}

// Paused returns the pause that is in force, or nil.
func (d *Database) Paused(ctx context.Context) (*Pause, error) {
	return row[Pause](ctx, d, "SELECT until, reason, paused_at, paused_by FROM rate_limit_pause WHERE until > now()")
}
