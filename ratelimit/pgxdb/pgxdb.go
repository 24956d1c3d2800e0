// Package pgxdb runs the statements of a Postgres store over pgx. It is for Go
// programs and for the Caddy module.
package pgxdb

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Options are the settings of a DB.
type Options struct {
	// MaxConns bounds the connections. 0 means the DSN's pool_max_conns, or 8.
	MaxConns int

	// Renew returns the DSN for a new connection, which may have changed, as if a file holds it. The bounds of the pool stay
	// those of the first DSN. Nil means that DSN. The files that a DSN names, such as a passfile, are read again in both cases.
	Renew func() (string, error)
}

// Without connect_timeout in the DSN, dialTimeout bounds the TCP connection and
// loginTimeout the whole login. An attempt goes on when its call has ended, and
// serves a later call. If packets are dropped, the kernel repeats them less and
// less often: the short dialTimeout makes way for a new attempt.
const (
	dialTimeout  = 2 * time.Second
	loginTimeout = 10 * time.Second
)

const (
	// defaultMaxConns is the bound if neither the options nor the DSN have one.
	defaultMaxConns = 8

	// defaultIdleTime is how long connections beyond the first stay open while they are
	// idle, if the DSN has no pool_max_conn_idle_time.
	defaultIdleTime = 5 * time.Minute
)

// errUnused keeps the pool from connecting before the first call.
var errUnused = errors.New("pgxdb: no call yet")

// calling is the key of a value in the context of a call. The pool's own contexts have none.
type calling struct{}

var _ pgdb.DB = (*DB)(nil)

// DB is a pgdb.DB over a pgx pool.
type DB struct {
	pool   *pgxpool.Pool
	shared bool // the program made the pool, and closes it
	gate   gate
	logins logins
	used   atomic.Bool  // a call has had a connection
	lost   atomic.Int32 // how many times prepared statements were lost

	config  *pgxpool.Config                // of connections to another server; does not change
	renewed func() (*pgconn.Config, error) // see open

	mu       sync.Mutex // guards what follows
	timeline string     // the latest one of a primary, see session.TimelineSQL
	latest   destination
}

// Open reads a DSN (a postgres:// URL or key=value pairs, and the usual
// environment variables) and returns a DB that connects when it is first used. From then
// on, the DB keeps at least one connection.
// An error never contains the password.
func Open(dsn string, o Options) (*DB, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, &ratelimit.FieldError{Field: "dsn", Value: "…", Want: "a Postgres URL or key=value pairs: " + parseFailure(err)}
	}
	if err := check(&config.ConnConfig.Config); err != nil {
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
	// Idle connections are not pinged: keep-alive probes notice when packets are
	// dropped. Go's interval is 15 seconds, that of pgx's own Dialer 5 minutes.
	dialer := &net.Dialer{Timeout: config.ConnConfig.ConnectTimeout}
	if dialer.Timeout == 0 {
		dialer.Timeout = dialTimeout
		config.ConnConfig.ConnectTimeout = loginTimeout
	}
	config.ConnConfig.DialFunc = dialLate(dialer.DialContext)
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // as in Go; the server converts
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if o.Renew == nil {
		return open(config, func() (*pgconn.Config, error) { return parse(dsn) })
	}
	return open(config, func() (*pgconn.Config, error) {
		dsn, err := o.Renew()
		if err != nil {
			return nil, err
		}
		return parse(dsn)
	})
}

// open returns a DB with a pool of its own. renewed reads the files again that the settings name; nil without.
func open(config *pgxpool.Config, renewed func() (*pgconn.Config, error)) (*DB, error) {
	// After a quiet time, a request should not wait for a login: one connection is kept, and
	// replaced when it is too old. There is none before the first call.
	d := &DB{config: config.Copy(), renewed: renewed, latest: destinationOf(&config.ConnConfig.Config)}
	config.MinConns = 1
	before := config.BeforeConnect // of the program's pool
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if !d.used.Load() && ctx.Value(calling{}) == nil {
			return errUnused
		}
		if before != nil {
			return before(ctx, c)
		}
		return d.renew(&c.Config)
	}
	if wanted := config.ConnConfig.ValidateConnect; wanted != nil && severalHosts(&config.ConnConfig.Config) {
		config.ConnConfig.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
			if err := wanted(ctx, c); err != nil {
				return err
			}
			return d.checkTimeline(ctx, c)
		}
	}
	config.ShouldPing = func(_ context.Context, idle pgxpool.ShouldPingParams) bool { return shouldPing(idle) }
	if others := config.ConnConfig.Tracer; others != nil {
		config.ConnConfig.Tracer = multitracer.New(&d.logins, others)
	} else {
		config.ConnConfig.Tracer = &d.logins
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	d.use(pool)
	return d, nil
}

// At returns a DB for another server of the same database, with the settings of this one.
func (d *DB) At(host string, port int) (pgdb.DB, error) {
	config := d.config.Copy()
	moveTo(&config.ConnConfig.Config, host, port)
	if d.renewed == nil {
		return open(config, nil)
	}
	return open(config, func() (*pgconn.Config, error) {
		c, err := d.renewed()
		if err == nil {
			moveTo(c, host, port)
		}
		return c, err
	})
}

// New returns a DB on a pool of the program. The pool keeps its settings, such as MaxConns. The program
// closes it, after the store. Its connections must be in UTF-8, as they are by default. An answer that comes in time
// and that this process is late to read counts only if BuildContextWatcherHandler of the pool's settings allows it,
// as a pgconn.DeadlineContextWatcherHandler with a DeadlineDelay does.
func New(pool *pgxpool.Pool) (*DB, error) {
	if pool == nil {
		return nil, &ratelimit.FieldError{Field: "pool", Want: "a pool, such as pgxpool.New returns"}
	}
	d := &DB{shared: true, config: pool.Config()}
	d.use(pool)
	return d, nil
}

// use sets the pool.
func (d *DB) use(pool *pgxpool.Pool) {
	d.pool = pool
	d.gate = gate{most: int(pool.Config().MaxConns), idle: func() int { return int(pool.Stat().IdleConns()) }}
}

// MaxConns is how many connections there are at most.
func (d *DB) MaxConns() int { return int(d.pool.Config().MaxConns) }

// parseFailure says what is wrong with a DSN, without the DSN and without pgx's
// quotations: if the password has characters that end a value, they may be parts of it.
func parseFailure(err error) string {
	text := err.Error()
	at := strings.LastIndex(text, afterDSN)
	if at < 0 {
		return "it cannot be parsed"
	}
	return quoted.ReplaceAllString(text[at+len(afterDSN):], `"…"`)
}

// afterDSN is the text between the DSN and the reason in pgx's error.
const afterDSN = "`: "

var quoted = regexp.MustCompile(`(?s)".*"`)

// check refuses what pgx accepts although it is unsafe.
func check(config *pgconn.Config) error {
	servers := append([]*pgconn.FallbackConfig{{Host: config.Host, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	for _, server := range servers {
		if strings.Contains(server.Host, "@") {
			// A part of the password, which the error of each attempt to connect would contain.
			return &ratelimit.FieldError{Field: "dsn", Value: "…", Want: `a Postgres URL with one "@", after user and password; in these it is written %40`}
		}
		if c := server.TLSConfig; c != nil && c.VerifyPeerCertificate != nil && c.RootCAs == nil {
			// As in libpq: otherwise a certificate for any host would be accepted.
			return &ratelimit.FieldError{Field: "dsn", Value: "…", Want: "sslrootcert beside sslmode verify-ca, or sslmode verify-full"}
		}
	}
	return nil
}

// closeTimeout is how long Close waits for connections in use.
const closeTimeout = time.Second

// Close implements pgdb.DB. It waits up to a second for calls under way. The
// connections of longer ones are closed later. A pool of New stays open.
func (d *DB) Close() {
	d.gate.close()
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
