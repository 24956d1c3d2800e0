package pgxdb

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// connection is the state of a connection. Only the call that has acquired the connection uses it.
type connection struct {
	*pgconn.PgConn
	types      *pgtype.Map          // not the pool's, which may give strings another type
	statements map[string]*prepared // by text: statements that the server has, or is about to have
	unguarded  int                  // the number of further uses without pg.Guard
	sent       []*prepared          // an element for each statement in the current pipeline
	parameters pgx.ExtendedQueryBuilder
}

// prepared is a statement that the connection has prepared, or has begun to prepare. Its Name is "" if it is
// prepared for one use.
type prepared struct {
	pgconn.StatementDescription
	confirmed bool // the server has confirmed that the statement is prepared
}

// newPrepared returns a statement without a name.
func (c *connection) newPrepared(s *pgdb.Statement) *prepared {
	oids := make([]uint32, len(s.Args)) // 0 for NULL: the server infers the type from the SQL
	for i, arg := range s.Args {
		if t, found := c.types.TypeForValue(arg); found {
			oids[i] = t.OID
		}
	}
	return &prepared{StatementDescription: pgconn.StatementDescription{
		SQL:       s.SQL,
		ParamOIDs: oids,
		// Pgx needs the columns only to decode values, which this package does not use. Without columns, pgx
		// would request them each time. With the true columns, pgx v5.12 mixes them up after a failed
		// transaction.
		Fields: make([]pgconn.FieldDescription, 1),
	}}
}

// connectionOf returns the state of a connection.
func connectionOf(conn *pgconn.PgConn) *connection {
	const key = "pgxdb"
	data := conn.CustomData()
	c, _ := data[key].(*connection)
	if c == nil {
		c = &connection{PgConn: conn, types: pgtype.NewMap(), statements: map[string]*prepared{}}
		data[key] = c
	}
	return c
}

// Run implements pgdb.DB.
func (d *DB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	return pg.Run(ctx, timeout, d.runner, statements,
		func(statements []*pgdb.Statement, a *pg.Attempt) { d.try(ctx, timeout, statements, a) })
}

// try runs statements on a connection of the pool.
func (d *DB) try(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement, a *pg.Attempt) {
	conn, err := d.acquire(ctx, timeout)
	if err != nil {
		a.NotSent(statements, serverError(err))
		return
	}
	defer d.release(conn)
	c := connectionOf(conn.Conn().PgConn())
	answer, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	c.unguarded = a.SendGuarded(c.unguarded, statements, func(guarded []*pgdb.Statement) {
		p := c.StartPipeline(answer)
		if err := c.send(p, guarded, a.Unnamed); err == nil {
			c.read(p, guarded, a)
		} else {
			a.ConnectionFailed(guarded, pgconn.SafeToRetry(err), serverError(err))
			a.Close = true
			_ = c.Conn().Close() // otherwise p.Close sends the transactions before the failure
		}
		if closed := p.Close(); a.Err == nil {
			a.Err = closed
		}
		if a.Err != nil && serverError(a.Err).Code == "" && answer.Err() == nil {
			d.pool.Reset() // a pooler or the network has probably ended the idle connections, too
		}
	})
	if a.Close {
		closeConn(conn)
	}
	if answer.Err() != nil && c.IsClosed() {
		go cancel(c.PgConn)
		a.GivenUp = c.CleanupDone()
	}
}

var binaryFormat = []int16{1}

// send sends statements in a pipeline, with a Sync after each transaction. (A batch of pgx is one implicit
// transaction, in which one bad row would fail all.)
func (c *connection) send(p *pgconn.Pipeline, statements []*pgdb.Statement, unnamed bool) error {
	c.sent = c.sent[:0]
	for i, s := range statements {
		s.Err, s.Code, s.Result, s.Rows = nil, "", s.Result[:0], 0
		stmt := c.statements[s.SQL]
		if unnamed || s.Unnamed || stmt == nil {
			stmt = c.newPrepared(s)
			if !unnamed && !s.Unnamed {
				stmt.Name = pg.StatementName(s.SQL)
				c.statements[s.SQL] = stmt
			}
			p.SendPrepare(stmt.Name, s.SQL, stmt.ParamOIDs)
		}
		c.sent = append(c.sent, stmt)
		if err := c.parameters.Build(c.types, &stmt.StatementDescription, s.Args); err != nil {
			return fmt.Errorf("pgxdb: %w", err)
		}
		p.SendQueryStatement(&stmt.StatementDescription, c.parameters.ParamValues, c.parameters.ParamFormats,
			binaryFormat)
		if !s.Joined || i == len(statements)-1 {
			p.SendPipelineSync()
		}
	}
	return p.Flush()
}

// read reads the answers to statements.
func (c *connection) read(p *pgconn.Pipeline, statements []*pgdb.Statement, a *pg.Attempt) {
	var failure *pg.ServerError // the error of the current transaction, or nil
	for first, next := 0, 0; first < len(statements); {
		results, err := p.GetResults()
		switch r := results.(type) {
		case *pgconn.StatementDescription:
			c.sent[next].ParamOIDs, c.sent[next].confirmed = r.ParamOIDs, true
		case *pgconn.ResultReader:
			if err = readRows(r, statements[next]); err == nil {
				next++
			}
		case *pgconn.PipelineSync:
			if failure != nil {
				next = c.transactionFailed(statements, first, next, failure, a)
				failure = nil
			}
			first = next
		}
		if err == nil {
			continue
		}
		failure = serverError(err)
		if failure.EndsConnection() {
			a.ConnectionEnded(statements[first:], next-first, false, failure)
			return
		}
	}
}

// readRows appends the rows of a result to Result of a statement.
func readRows(r *pgconn.ResultReader, s *pgdb.Statement) error {
	for r.NextRow() {
		for _, column := range r.Values() {
			size := int32(-1) // NULL
			if column != nil {
				size = int32(len(column))
			}
			s.Result = binary.BigEndian.AppendUint32(s.Result, uint32(size))
			s.Result = append(s.Result, column...)
		}
		s.Rows++
	}
	_, err := r.Close()
	return err
}

// transactionFailed handles the error e of a transaction. first is the index of its first statement, and
// failed the index of the statement that failed. transactionFailed returns the index of the next transaction.
func (c *connection) transactionFailed(statements []*pgdb.Statement, first, failed int, e *pg.ServerError,
	a *pg.Attempt) int {
	_, end := pg.Transaction(statements, first)
	// If the commit failed, failed is end. A commit has no statement, so the last statement gets the error.
	failed = min(failed, end-1)
	a.TransactionFailed(statements[first:end], failed-first, e, c.sent[failed].Name != "",
		c.sent[failed].confirmed)
	for _, stmt := range c.sent[first:end] {
		if stmt.Name != "" && !stmt.confirmed {
			delete(c.statements, stmt.SQL) // the server has skipped the Parse of stmt
		}
	}
	return end
}

// Exec implements pgdb.DB.
func (d *DB) Exec(ctx context.Context, timeout time.Duration, sql string) error {
	conn, err := d.acquire(ctx, timeout)
	if err != nil {
		return pg.NotSent(ctx, err)
	}
	defer d.release(conn)
	answer, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	c := conn.Conn().PgConn()
	_, err = c.Exec(answer, sql).ReadAll()
	if answer.Err() != nil && c.IsClosed() {
		go cancel(c)
	}
	e := serverError(err)
	if pg.ClosesConnection(e.Code) {
		closeConn(conn)
	}
	if e.EndsConnection() {
		return pg.Outcome(ctx, err)
	}
	return err
}

// cancelInterval is the time between the CancelRequests for a session.
const cancelInterval = 50 * time.Millisecond

// cancel requests that the server cancel the statements of a connection that a call has given up, until pgx
// has closed it. The connection counts until then. The CancelRequest of pgx itself ends at most one wait of a
// pipeline, and a commit that waits for a synchronous standby does not notice that its client has gone.
func cancel(conn *pgconn.PgConn) {
	ctx, stop := context.WithTimeout(context.Background(), loginTimeout)
	defer stop()
	for {
		select {
		case <-conn.CleanupDone():
			return
		case <-time.After(cancelInterval):
			if conn.CancelRequest(ctx) != nil {
				return
			}
		}
	}
}

// closeConn closes a connection, so that the pool does not keep it.
func closeConn(conn *pgxpool.Conn) { _ = conn.Conn().PgConn().Close(context.Background()) }

// serverError returns the error of the server in err. Its Code is "" if err is nil or has none.
func serverError(err error) *pg.ServerError {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return &pg.ServerError{Err: err}
	}
	return &pg.ServerError{Severity: cmp.Or(e.SeverityUnlocalized, e.Severity), Code: e.Code,
		Message: e.Message, Routine: e.Routine, Err: err}
}
