// Package pgxdb runs the statements of a Postgres store over pgx. It is for Go programs and the Caddy
// module.
package pgxdb

import (
	"cmp"
	"context"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Options are the settings of a DB.
type Options struct {
	// MaxConns bounds the connections. 0 means the DSN's pool_max_conns, or 8.
	MaxConns int

	// Renew returns the DSN for a new connection. Set it if the DSN can change, for example because a file
	// holds it. The pool keeps the bounds of the first DSN. Nil means that the DSN does not change.
	// With or without Renew, the files that the DSN names, such as a passfile, are read for each connection.
	// If the DSN of Renew is not valid, the latest valid one stays in use, and Refused, unless it is nil, is
	// called once with the error.
	Renew   func() (string, error)
	Refused func(error)
}

// Without connect_timeout in the DSN, dialTimeout bounds the TCP connection and loginTimeout the whole
// login. An attempt continues after its call has ended, and serves a later call. If packets are dropped, the
// kernel repeats them less and less often, and the short dialTimeout makes room for a new attempt.
const (
	dialTimeout  = 2 * time.Second
	loginTimeout = 10 * time.Second
)

const (
	// defaultMaxConns is the bound if neither the options nor the DSN have one.
	defaultMaxConns = 8

	// defaultIdleTime bounds the time that connections beyond the first stay open while they are idle, if
	// the DSN has no pool_max_conn_idle_time.
	defaultIdleTime = 5 * time.Minute

	// lateTime is the time that a connection is still read after a call's context has ended. If this process
	// is late, the answer is there, but the runtime may fire the timer before it polls the network.
	lateTime = 20 * time.Millisecond

	// closeTimeout bounds the wait of Close for connections in use.
	closeTimeout = time.Second
)

var _ pgdb.DB = (*DB)(nil)

// DB is a pgdb.DB over a pgx pool.
type DB struct {
	pool   *pgxpool.Pool
	shared bool          // the program made the pool and closes it
	slots  chan struct{} // holds the free slots, see withhold
	logins logins
	closed atomic.Bool
	used   atomic.Bool // a call has had a connection
	runner *pg.Runner

	config *pgxpool.Config // the settings for At; does not change
	renew  renewal

	mu          sync.Mutex // guards the fields below
	timeline    string     // the latest timeline of a primary, see pg.TimelineSQL
	destination string     // the server, database and user of the latest connection
}

// Open reads a DSN (a postgres:// URL or key=value pairs, and the usual environment variables) and returns
// a DB that connects when it is first used. From then on, the DB keeps at least one connection. An error
// never contains the password.
func Open(dsn string, o Options) (*DB, error) {
	config, err := parseDSN(dsn, true)
	if err != nil {
		return nil, err
	}
	if o.MaxConns > 0 {
		config.MaxConns = int32(o.MaxConns)
	} else if !strings.Contains(dsn, "pool_max_conns") {
		config.MaxConns = defaultMaxConns
	}
	if !strings.Contains(dsn, "pool_max_conn_idle_time") {
		config.MaxConnIdleTime = defaultIdleTime
	}
	// Keep-alive probes find out when packets are dropped. Go's interval is 15 seconds, the interval of pgx's
	// own Dialer 5 minutes.
	c := config.ConnConfig
	dialer := &net.Dialer{Timeout: c.ConnectTimeout}
	if dialer.Timeout == 0 {
		dialer.Timeout, c.ConnectTimeout = dialTimeout, loginTimeout
	}
	c.DialFunc = dialer.DialContext
	c.RuntimeParams["client_encoding"] = "UTF8" // as in Go; the server converts
	c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: lateTime}
	}
	var mu sync.Mutex // guards valid and refused
	valid, refused := dsn, ""
	return open(config, func(_ context.Context, c *pgx.ConnConfig) (err error) {
		latest := dsn
		if o.Renew != nil {
			if latest, err = o.Renew(); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		renewed, err := parseDSN(latest, latest != valid)
		if err == nil {
			valid = latest
		} else if latest != refused && o.Refused != nil {
			o.Refused(err)
		}
		if err != nil {
			refused = latest
			if renewed, err = parseDSN(valid, false); err != nil {
				return err // a file that it names has gone
			}
		}
		to := renewed.ConnConfig
		c.Host, c.Port, c.Database, c.User = to.Host, to.Port, to.Database, to.User
		c.TLSConfig, c.Password, c.Fallbacks = to.TLSConfig, to.Password, to.Fallbacks
		return nil
	})
}

// open returns a DB with a new pool.
func open(config *pgxpool.Config, renew renewal) (*DB, error) {
	d := &DB{config: config.Copy(), renew: renew}
	config.MinConns = 1 // so that after a quiet time no request waits for a login
	config.BeforeConnect = d.beforeConnect
	c := config.ConnConfig
	if wanted := c.ValidateConnect; wanted != nil && severalHosts(c) {
		c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			if err := wanted(ctx, conn); err != nil {
				return err
			}
			return d.checkTimeline(ctx, conn)
		}
	}
	tracer := &multitracer.Tracer{}
	if c.Tracer != nil {
		tracer = multitracer.New(c.Tracer)
	}
	tracer.ConnectTracers = append(tracer.ConnectTracers, &d.logins)
	c.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	return d.usePool(pool), nil
}

// At returns a DB for another server of the same database, with the settings of this one.
func (d *DB) At(host string, port int) (pgdb.DB, error) {
	config := d.config.Copy()
	moveTo(config.ConnConfig, host, port)
	return open(config, func(ctx context.Context, c *pgx.ConnConfig) error {
		err := d.renew(ctx, c)
		moveTo(c, host, port)
		return err
	})
}

// New returns a DB on a pool of the program. The pool keeps its settings, such as MaxConns. The program
// closes the pool after the store. The DB resets the pool when the network ends a connection in use. The
// connections must be in UTF-8, as they are by default. An answer that arrives in time but is read late
// counts only if the pool's BuildContextWatcherHandler allows it, as a
// pgconn.DeadlineContextWatcherHandler with a DeadlineDelay does.
func New(pool *pgxpool.Pool) (*DB, error) {
	if pool == nil {
		return nil, &ratelimit.FieldError{Field: "pool", Want: "a pool, such as pgxpool.New returns"}
	}
	d := &DB{shared: true, config: pool.Config()}
	if d.renew = d.config.BeforeConnect; d.renew == nil {
		d.renew = func(context.Context, *pgx.ConnConfig) error { return nil }
	}
	return d.usePool(pool), nil
}

// usePool sets the pool of d and returns d.
func (d *DB) usePool(pool *pgxpool.Pool) *DB {
	d.pool, d.slots = pool, make(chan struct{}, pool.Config().MaxConns)
	d.runner = pg.NewRunner(cap(d.slots))
	for range cap(d.slots) {
		d.slots <- struct{}{}
	}
	return d
}

// MaxConns returns the largest number of connections.
func (d *DB) MaxConns() int { return cap(d.slots) }

// SessionConfig reads a DSN for sessions of a program that is no proxy, such as a command. A DSN without the
// name of an application gets the one given. An error is a *ratelimit.FieldError without the password.
func SessionConfig(dsn, application string) (*pgxpool.Config, error) {
	config, err := parseDSN(dsn, true)
	if err != nil {
		return nil, err
	}
	c := config.ConnConfig
	c.RuntimeParams["application_name"] = cmp.Or(c.RuntimeParams["application_name"], application)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, loginTimeout)
	c.RuntimeParams["client_encoding"] = "UTF8"
	// Do not prepare statements, because a pooler may run each transaction in another session.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	return config, nil
}

// parseDSN reads the settings of a DSN and the files that it names. It refuses unsafe settings that pgx
// accepts, and parameters of other programs. If the DSN is new, it checks its password file. An error is a
// *ratelimit.FieldError without the password.
func parseDSN(dsn string, isNew bool) (*pgxpool.Config, error) {
	values, err := pg.ParseDSN(dsn)
	if err == nil && isNew {
		err = pg.CheckPassfile(values)
	}
	if err != nil {
		return nil, invalid("a Postgres URL or key=value pairs: " + err.Error())
	}
	config, err := pgxpool.ParseConfig(pg.FormatDSN(values))
	if err != nil {
		return nil, invalid("a Postgres URL or key=value pairs: " + parseFailure(err))
	}
	c := config.ConnConfig
	for _, server := range append(c.Fallbacks, &pgconn.FallbackConfig{Host: c.Host, TLSConfig: c.TLSConfig}) {
		if strings.Contains(server.Host, "@") {
			// A part of the password, which the error of each attempt to connect would contain.
			return nil, invalid(
				`a Postgres URL with one "@", after user and password; in these it is written %40`)
		}
		if t := server.TLSConfig; t != nil && t.VerifyPeerCertificate != nil && t.RootCAs == nil {
			// As in libpq: otherwise a certificate for any host would be accepted.
			return nil, invalid("sslrootcert beside sslmode verify-ca, or sslmode verify-full")
		}
	}
	return config, nil
}

func invalid(want string) error {
	return &ratelimit.FieldError{Field: "dsn", Value: "…", Want: want}
}

// parseFailure returns the reason in pgx's error about a DSN, without the DSN and without pgx's quotations,
// which may be parts of a password.
func parseFailure(err error) string {
	text := err.Error()
	i := strings.LastIndex(text, afterDSN)
	if i < 0 {
		return "it cannot be parsed"
	}
	return quoted.ReplaceAllString(text[i+len(afterDSN):], `"…"`)
}

// afterDSN is the text between the DSN and the reason in pgx's error.
const afterDSN = "`: "

var quoted = regexp.MustCompile(`(?s)".*"`)

// Close implements pgdb.DB. It waits up to a second for calls under way. The connections of longer ones are
// closed later. A pool of New stays open.
func (d *DB) Close() {
	d.closed.Store(true)
	if d.shared {
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}
