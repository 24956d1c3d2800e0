package caddymodule

import (
	"errors"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// logName is the name of the log of stores. A store can outlive the config that opened it, so it cannot use a
// config's logger.
const logName = "pg_ratelimit"

// closeDelay is the time for which the connections and counts of a config stay open after the config has
// ended, in addition to the timeout of its handlers. A config that is loaded within this time takes over the
// connections, and with the DSN memory also the counts.
const closeDelay = 30 * time.Second

// process holds the resources that all configs of this process share.
var process = &host.Process{
	Kind: "caddy", Version: Version(), Delay: closeDelay, Connect: connect,
	Log: func(line host.Line) { logLine(caddy.Log().Named(logName), line) },
}

// connect implements host.Process.Connect. Its errors contain source.Configured.Shown instead of the DSN,
// which may have a password.
func connect(source *host.DataSource) (pgdb.DB, error) {
	options := pgxdb.Options{MaxConns: source.MaxConns, Renew: source.Configured.Renew,
		Refused: func(err error) {
			logLine(caddy.Log().Named(logName), host.Line{Level: host.Error, Err: err,
				Text: "a changed DSN is refused, and the one before stays in use"})
		}}
	db, err := pgxdb.Open(source.DSN, options)
	var wrong *ratelimit.FieldError
	if errors.As(err, &wrong) {
		shown := source.Configured.Shown
		return nil, option.Invalid(wrong.Field, shown, wrong.Want)
	}
	return db, err
}

// logLine writes a line to a log.
func logLine(l *zap.Logger, line host.Line) {
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
		fields = append(fields, zap.Duration("outage", line.Lasted),
			zap.Int64("requests_without_decision", line.Undecided))
	}
	l.Log(zapcore.Level(line.Level), text, fields...)
}

// closeAll settles what runs, and closes all shared resources, at the end of the process. It closes histories
// first, which write pending records to their databases. A database refunds the units of its leases when it
// is closed.
func closeAll() {
	process.Running.Stop()
	for _, databases := range []bool{false, true} {
		var wg sync.WaitGroup
		for _, r := range process.Shared() {
			if _, ok := r.(*host.Database); ok == databases {
				wg.Go(r.Close)
			}
		}
		wg.Wait()
	}
}
