// Package pgxdb runs the statements of a ratelimit.Postgres store over pgx, for
// the Caddy module and for Go programs.
package pgxdb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a DB.
type Options struct {
	// MaxConns bounds the connections. 0 means the DSN's pool_max_conns, or 8.
	MaxConns int
}

// How long the connection and the whole login may take where the DSN has no
// connect_timeout. An attempt goes on when its call has given up, and serves a
// later one; but one whose packets were dropped must make way for the next, or
// the database's return is noticed as late as the kernel tries again.
const (
	dialTimeout  = 2 * time.Second
	loginTimeout = 10 * time.Second
)

// MaxConns is what Options.MaxConns comes to with a DSN. It is 0 where the DSN's
// pool_max_conns says it.
func MaxConns(dsn string, option int) int {
	if option > 0 || strings.Contains(dsn, "pool_max_conns") {
		return max(option, 0)
	}
	return 8
}

// DB is a ratelimit.DB over a pgx pool.
type DB struct {
	pool    *pgxpool.Pool
	unnamed atomic.Bool // a pooler in between does not keep prepared statements
	names   sync.Map    // SQL text → name
}

// Open reads a DSN (a postgres:// URL or key=value pairs, and the usual
// environment variables) and returns a DB that connects when it is first used.
// An error never holds the password.
func Open(dsn string, o Options) (*DB, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, &ratelimit.FieldError{Field: "dsn", Value: "…", Want: "a Postgres URL or key=value pairs: " + parseFailure(err)}
	}
	if err := check(&config.ConnConfig.Config); err != nil {
		return nil, err
	}
	if most := MaxConns(dsn, o.MaxConns); most > 0 {
		config.MaxConns = int32(most)
	}
	config.MinConns = 0
	config.MaxConnIdleTime = 5 * time.Minute
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = loginTimeout
		config.ConnConfig.DialFunc = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 5 * time.Minute}).DialContext
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // that of Go's text, whatever the database's is
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	return &DB{pool: pool}, nil
}

// parseFailure is what is wrong with a DSN, without the DSN. What pgx quotes of it
// may be a part of the password, where that has characters that end a value.
func parseFailure(err error) string {
	text := err.Error()
	at := strings.LastIndex(text, afterDSN)
	if at < 0 {
		return "it cannot be parsed"
	}
	return quoted.ReplaceAllString(text[at+len(afterDSN):], `"…"`)
}

// afterDSN is what pgx puts between a DSN and what is wrong with it.
const afterDSN = "`: "

var quoted = regexp.MustCompile(`(?s)".*"`)

// check refuses what pgx takes, and should not.
func check(config *pgconn.Config) error {
	servers := append([]*pgconn.FallbackConfig{{Host: config.Host, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	for _, server := range servers {
		if strings.Contains(server.Host, "@") {
			// A part of the password, which would be in the error of each attempt to connect.
			return &ratelimit.FieldError{Field: "dsn", Value: "…", Want: `a Postgres URL with one "@", after user and password; in these it is written %40`}
		}
		if c := server.TLSConfig; c != nil && c.VerifyPeerCertificate != nil && c.RootCAs == nil {
			// As in libpq: else the certificate of anybody's server would do.
			return &ratelimit.FieldError{Field: "dsn", Value: "…", Want: "sslrootcert beside sslmode verify-ca, or sslmode verify-full"}
		}
	}
	return nil
}

// Run implements ratelimit.DB.
func (d *DB) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	err := d.run(ctx, statements, d.unnamed.Load())
	if err != nil {
		return err
	}
	// A pooler that hands each transaction to another server connection loses
	// prepared statements. They did not run, so they may run again.
	var lost []*ratelimit.Statement
	for _, s := range statements {
		if s.Code == invalidStatementName || s.Code == duplicateStatement {
			lost = append(lost, s)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	d.unnamed.Store(true)
	return d.run(ctx, lost, true)
}

// SQLSTATEs of a prepared statement that is gone, or there already.
const (
	invalidStatementName = "26000"
	duplicateStatement   = "42P05"
)

func (d *DB) run(ctx context.Context, statements []*ratelimit.Statement, unnamed bool) error {
	for _, s := range statements {
		s.Err, s.Code = errUnknown, ""
	}
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return fail(statements, err)
	}
	defer conn.Release()
	pg := conn.Conn().PgConn()
	sent := statements
	if !unnamed {
		if sent, err = d.prepare(ctx, pg, statements); err != nil {
			return fail(statements, err)
		}
	}
	return d.pipeline(ctx, pg, sent, unnamed)
}

// errUnknown marks a statement whose answer has not come.
var errUnknown = errors.New("pgxdb: no answer from the server")

// fail gives the statements without an answer the error.
func fail(statements []*ratelimit.Statement, err error) error {
	for _, s := range statements {
		if errors.Is(s.Err, errUnknown) {
			s.Err = err
		}
	}
	return err
}

// preparedKey is where a connection keeps what it has prepared.
const preparedKey = "pgxdb.prepared"

// prepare makes sure that the connection knows the statements, and returns
// those that it could.
func (d *DB) prepare(ctx context.Context, pg *pgconn.PgConn, statements []*ratelimit.Statement) ([]*ratelimit.Statement, error) {
	prepared, _ := pg.CustomData()[preparedKey].(map[string]*pgconn.StatementDescription)
	if prepared == nil {
		prepared = map[string]*pgconn.StatementDescription{}
		pg.CustomData()[preparedKey] = prepared
	}
	known := statements
	for i, s := range statements {
		if prepared[s.SQL] != nil {
			if len(known) < len(statements) {
				known = append(known, s)
			}
			continue
		}
		description, err := pg.Prepare(ctx, d.name(s.SQL), s.SQL, nil)
		switch {
		case err == nil:
			prepared[s.SQL] = description
			if len(known) < len(statements) {
				known = append(known, s)
			}
		case conclude(s, err):
			if len(known) == len(statements) {
				known = append([]*ratelimit.Statement(nil), statements[:i]...)
			}
		default:
			return nil, err
		}
	}
	return known, nil
}

// name is a prepared statement's name. It is made from the text, so that a name
// that somebody else left behind on the server's connection means the same.
func (d *DB) name(sql string) string {
	if name, ok := d.names.Load(sql); ok {
		return name.(string)
	}
	sum := sha256.Sum256([]byte(sql))
	name := "pgrl_" + hex.EncodeToString(sum[:12])
	d.names.Store(sql, name)
	return name
}

// pipeline sends the statements, each with its own Sync, and reads the answers.
func (d *DB) pipeline(ctx context.Context, pg *pgconn.PgConn, statements []*ratelimit.Statement, unnamed bool) error {
	if len(statements) == 0 {
		return nil
	}
	p := pg.StartPipeline(ctx)
	buffers := encoders.Get().(*encoder)
	defer encoders.Put(buffers)
	buffers.reset()
	prepared, _ := pg.CustomData()[preparedKey].(map[string]*pgconn.StatementDescription)
	for _, s := range statements {
		if err := buffers.encode(s.Args); err != nil {
			_ = p.Close() // nothing was sent
			return fail(statements, err)
		}
		if unnamed {
			p.SendQueryParams(s.SQL, buffers.values, buffers.oids, binaryFormat, binaryFormat)
		} else {
			p.SendQueryStatement(prepared[s.SQL], buffers.values, binaryFormat, binaryFormat)
		}
		p.SendPipelineSync()
	}
	err := p.Flush()
	for i := 0; i < len(statements) && err == nil; i++ {
		err = answer(p, statements[i])
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fail(statements, err)
	}
	return nil
}

var binaryFormat = []int16{1}

// answer reads the answer to one statement, up to its Sync.
func answer(p *pgconn.Pipeline, s *ratelimit.Statement) error {
	for {
		results, err := p.GetResults()
		if err != nil {
			if !conclude(s, err) {
				return err
			}
			continue
		}
		switch r := results.(type) {
		case *pgconn.ResultReader:
			var rowErr error
			for r.NextRow() {
				if s.Row != nil && rowErr == nil {
					rowErr = s.Row(r.Values())
				}
			}
			if _, err = r.Close(); err != nil {
				if !conclude(s, err) {
					return err
				}
				continue
			}
			s.Err = rowErr
		case *pgconn.PipelineSync:
			return nil
		case nil:
			return errUnknown
		}
	}
}

// conclude records the server's error as the statement's. It reports false for
// an error of the connection, or one that ends it.
func conclude(s *ratelimit.Statement, err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Severity == "FATAL" || pgErr.Severity == "PANIC" {
		return false
	}
	s.Err, s.Code = pgErr, pgErr.Code
	return true
}

// Exec implements ratelimit.DB.
func (d *DB) Exec(ctx context.Context, sql string) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// closing is how long Close waits for connections that are in use.
const closing = time.Second

// Close implements ratelimit.DB. It waits a second at most for a server that does
// not answer; what is left then ends in the background.
func (d *DB) Close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closing):
	}
}
