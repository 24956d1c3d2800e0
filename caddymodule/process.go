package caddymodule

import (
	"errors"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// logName is the name under which stores log. A store can outlive the config that opened
// it, so it cannot use the logger of a config.
const logName = "pg_ratelimit"

// closeDelay is the time for which the connections and counts of a config stay open after the config has
// ended, in addition to the timeout of its handlers. A config that is loaded within this time takes over the
// connections, and with the DSN memory also the counts.
const closeDelay = 30 * time.Second

// proxy holds what all configs of this process share.
var proxy = &host.Process{
	Kind: "caddy", Version: version(), Delay: closeDelay, Connect: connect,
	Log: func(line host.Line) { write(caddy.Log().Named(logName), line) },
}

// connect implements host.Process.Connect. Its errors contain at.Configured.Shown instead of the DSN, which
// may have a password.
func connect(at *host.DataSource) (pgdb.DB, error) {
	db, err := pgxdb.Open(at.DSN, pgxdb.Options{MaxConns: at.MaxConns, Renew: at.Configured.Renew})
	var field *ratelimit.FieldError
	if errors.As(err, &field) {
		return nil, &ratelimit.FieldError{Field: field.Field, Value: at.Configured.Shown, Want: field.Want}
	}
	return db, err
}

// write writes a line to a log.
func write(l *zap.Logger, line host.Line) {
	text, fields := line.Text, []zap.Field{}
	if line.Setting != "" {
		text = line.Setting + " " + text
	}
	if line.Prefix != "" {
		fields = append(fields, zap.String("prefix", line.Prefix))
	}
	if line.Err != nil {
		fields = append(fields, zap.Error(line.Err), zap.Int64("not_logged", line.Dropped))
	}
	if line.Lasted > 0 || line.Undecided > 0 {
		fields = append(fields, zap.Duration("outage", line.Lasted), zap.Int64("requests_without_decision",
			line.Undecided))
	}
	l.Log(zapcore.Level(line.Level), text, fields...)
}

// closeAll closes all shared resources at the end of the process, which writes pending records and refunds
// the units of leases. It closes a history before its database.
func closeAll() {
	for _, databases := range []bool{false, true} {
		var wg sync.WaitGroup
		for _, r := range proxy.Shared() {
			if _, is := r.(*host.Database); is == databases {
				wg.Go(r.Close)
			}
		}
		wg.Wait()
	}
}
