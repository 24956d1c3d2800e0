package pgxdb

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// connection is the state of a connection. Only the call that has acquired the connection uses it.
type connection struct {
	conn      *pgconn.PgConn
	prepared  map[string]*prepared // by text: statements that the server has, or is about to have
	unguarded int                  // the number of further uses without pg.Guard

	// The current pipeline. The next one reuses its memory.
	sent   []*pgdb.Statement
	params []parameters // the parameters of sent
	buffer []byte       // the memory of all values
	values [][]byte
	oids   []uint32
}

// parameters are the encoded parameters of a statement.
type parameters struct {
	values [][]byte
	oids   []uint32
	stmt   *prepared // nil for a statement that is not prepared
}

// prepared is a statement that the connection has prepared, or has begun to prepare.
type prepared struct {
	pgconn.StatementDescription
	ready bool // the server has confirmed it
}

// newPrepared returns a statement with a name made from its text. Behind a pooler, a statement of another
// session with the same name therefore has the same text.
func newPrepared(sql string) *prepared {
	sum := sha256.Sum256([]byte(sql))
	return &prepared{StatementDescription: pgconn.StatementDescription{
		Name: "pgrl_" + hex.EncodeToString(sum[:12]),
		SQL:  sql,
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
		c = &connection{conn: conn, prepared: map[string]*prepared{}, buffer: make([]byte, 0, 512)}
		data[key] = c
	}
	return c
}

// run sends statements in one pipeline and reads the answers.
func (c *connection) run(ctx context.Context, statements []*pgdb.Statement, a *pg.Attempt) {
	c.sent, c.params = c.sent[:0], c.params[:0]
	c.buffer, c.values, c.oids = c.buffer[:0], c.values[:0], c.oids[:0]
	for len(statements) > 0 {
		_, next := pg.Transaction(statements, 0)
		c.add(statements[:next])
		statements = statements[next:]
	}
	if len(c.sent) == 0 {
		return
	}
	p := c.conn.StartPipeline(ctx)
	c.send(p, a.Unnamed)
	if err := p.Flush(); err != nil {
		a.ConnectionFailed(c.sent, pgconn.SafeToRetry(err), err, "")
	} else {
		c.read(p, a)
	}
	if closed := p.Close(); a.Err == nil {
		a.Err = closed
	}
}

// add encodes a transaction. If one of its statements cannot be encoded, add sends none of them.
func (c *connection) add(transaction []*pgdb.Statement) {
	before := len(c.params)
	for i, s := range transaction {
		if err := c.encode(s); err != nil {
			c.params = c.params[:before]
			pg.RollBack(transaction, i, err, "")
			return
		}
	}
	c.sent = append(c.sent, transaction...)
}

var binaryFormat = []int16{1}

// send adds the statements to the pipeline, with a Sync after each transaction. (A batch of pgx is one
// implicit transaction, in which one bad row would fail all.)
func (c *connection) send(p *pgconn.Pipeline, unnamed bool) {
	for i, s := range c.sent {
		to := &c.params[i]
		if unnamed || s.Unnamed {
			p.SendQueryParams(s.SQL, to.values, to.oids, binaryFormat, binaryFormat)
		} else {
			if to.stmt = c.prepared[s.SQL]; to.stmt == nil {
				to.stmt = newPrepared(s.SQL)
				c.prepared[s.SQL] = to.stmt
				p.SendPrepare(to.stmt.Name, s.SQL, to.oids)
			}
			p.SendQueryStatement(&to.stmt.StatementDescription, to.values, binaryFormat, binaryFormat)
		}
		if !s.Joined || i == len(c.sent)-1 {
			p.SendPipelineSync()
		}
	}
}

// read reads the answers to all transactions.
func (c *connection) read(p *pgconn.Pipeline, a *pg.Attempt) {
	for first := 0; first < len(c.sent) && a.Err == nil; {
		_, next := pg.Transaction(c.sent, first)
		c.readTransaction(p, first, next, a)
		first = next
	}
}

// readTransaction reads the answers to the transaction of the statements from first to before next.
func (c *connection) readTransaction(p *pgconn.Pipeline, first, next int, a *pg.Attempt) {
	var failure *pg.ServerError
	for answered := first; ; {
		results, err := p.GetResults()
		switch r := results.(type) {
		case *pgconn.StatementDescription:
			c.params[answered].stmt.ready = true
		case *pgconn.ResultReader:
			if err = readRows(r, c.sent[answered]); err == nil {
				answered++
			}
		case *pgconn.PipelineSync:
			if failure != nil {
				c.transactionFailed(first, min(answered, next-1), next, failure, a)
			}
			return
		}
		if err == nil {
			continue
		}
		failure = serverError(err)
		switch {
		case failure.Fatal():
			a.SessionEnded(c.sent[first:], answered-first, false, failure)
			return
		case failure.Code == "":
			a.ConnectionFailed(c.sent[first:], pgconn.SafeToRetry(err), err, "")
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

// transactionFailed handles the error of a statement. Its transaction begins with the statement first, and
// ends before next.
func (c *connection) transactionFailed(first, failed, next int, e *pg.ServerError, a *pg.Attempt) {
	stmt := c.params[failed].stmt
	a.TransactionFailed(c.sent[first:next], failed-first, e, stmt != nil, stmt != nil && stmt.ready)
	for i := first; i < next; i++ {
		if stmt := c.params[i].stmt; stmt != nil && !stmt.ready {
			delete(c.prepared, stmt.SQL) // the server skipped its Parse
		}
	}
}

// maxParameters bounds the parameters of a statement in the protocol.
const maxParameters = 65535

// encode appends to params the values of a statement's parameters in Postgres's binary format, and their
// types. Both stay valid until the next pipeline. The type of NULL is 0: the text of the statement decides.
func (c *connection) encode(s *pgdb.Statement) error {
	if len(s.Args) > maxParameters {
		return fmt.Errorf("pgxdb: %d parameters, must be %d or less", len(s.Args), maxParameters)
	}
	if strings.Contains(s.SQL, "\x00") {
		return errors.New("pgxdb: the SQL text holds a NUL byte")
	}
	first, big := len(c.values), binary.BigEndian
	for _, arg := range s.Args {
		start, oid := len(c.buffer), uint32(0)
		switch v := arg.(type) {
		case nil:
		case int64:
			oid = pgtype.Int8OID
			c.buffer = big.AppendUint64(c.buffer, uint64(v))
		case string:
			oid = pgtype.TextOID
			c.buffer = append(c.buffer, v...)
		case []int64:
			oid = pgtype.Int8ArrayOID
			c.array(pgtype.Int8OID, len(v))
			for _, n := range v {
				c.buffer = big.AppendUint64(big.AppendUint32(c.buffer, 8), uint64(n))
			}
		case []string:
			oid = pgtype.TextArrayOID
			c.array(pgtype.TextOID, len(v))
			for _, s := range v {
				c.buffer = append(big.AppendUint32(c.buffer, uint32(len(s))), s...)
			}
		default:
			return fmt.Errorf(
				"pgxdb: a parameter of type %T, must be []string, []int64, string, int64 or nil", arg)
		}
		value := c.buffer[start:len(c.buffer):len(c.buffer)]
		if arg == nil {
			value = nil
		}
		c.values, c.oids = append(c.values, value), append(c.oids, oid)
	}
	c.params = append(c.params, parameters{values: c.values[first:], oids: c.oids[first:]})
	return nil
}

// array appends the header of a one-dimensional array without NULLs.
func (c *connection) array(element uint32, length int) {
	// The number of dimensions, whether there are NULLs, and the type; the length and the first subscript.
	for _, n := range [...]uint32{1, 0, element, uint32(length), 1} {
		c.buffer = binary.BigEndian.AppendUint32(c.buffer, n)
	}
}
