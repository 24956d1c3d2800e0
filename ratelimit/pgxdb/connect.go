package pgxdb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/timeline"
)

// renew reads the files again that a DSN names, so that a new connection uses certificates and
// passwords that were renewed.
func renew(config *pgconn.Config, dsn string) error {
	fresh, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return errors.New("pgxdb: dsn: " + parseFailure(err))
	}
	now := &fresh.ConnConfig.Config
	if err := check(now); err != nil {
		return err
	}
	config.TLSConfig, config.Password, config.Fallbacks = now.TLSConfig, now.Password, now.Fallbacks
	return nil
}

// severalHosts reports whether there is another server to connect to. The same one occurs twice if
// TLS is tried first.
func severalHosts(config *pgconn.Config) bool {
	for _, other := range config.Fallbacks {
		if other.Host != config.Host || other.Port != config.Port {
			return true
		}
	}
	return false
}

var errReplaced = errors.New(timeline.Replaced)

// checkTimeline refuses a primary that another one has replaced. A server that does not tell its
// timeline is not refused.
func (d *DB) checkTimeline(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, timeline.SQL).ReadAll()
	if err != nil && serverError(err) == nil {
		return err
	}
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		return nil
	}
	name := string(results[0].Rows[0][0])
	d.mu.Lock()
	defer d.mu.Unlock()
	if timeline.Earlier(name, d.timeline) {
		return errReplaced
	}
	if timeline.Earlier(d.timeline, name) {
		d.pool.Reset() // connections to the primary that was replaced
	}
	d.timeline = name
	return nil
}
