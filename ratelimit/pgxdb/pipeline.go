package pgxdb

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// States of a prepared statement on its connection.
const (
	absent = iota
	sent   // its Parse is in the pipeline that is under way
	ready
)

// prepared is what a connection knows of a statement's text. Only the owner of the
// connection uses it.
type prepared struct {
	description *pgconn.StatementDescription
	state       int
}

func newPrepared(sql string) *prepared {
	// The name is made from the text, so that a statement which another session left
	// on the server's connection has the same text.
	sum := sha256.Sum256([]byte(sql))
	return &prepared{description: &pgconn.StatementDescription{
		Name: "pgrl_" + hex.EncodeToString(sum[:12]),
		SQL:  sql,
		// pgx needs the columns only to decode values, and the values are read as they
		// are. Without columns, pgx would ask for them each time. With the true ones,
		// pgx v5.12 mixes them up after a transaction that failed: it does not skip
		// those of the statements that the server skipped.
		Fields: make([]pgconn.FieldDescription, 1),
	}}
}

// sentStatement is one statement of a pipeline.
type sentStatement struct {
	statement *pgdb.Statement
	prepared  *prepared // nil to send it without preparing it
	values    [][]byte
	oids      []uint32
	last      bool // of its transaction
}

// pipeline is the statements of one round trip.
type pipeline struct {
	encoder  encoder
	prepared map[string]*prepared // of the connection
	requests []sentStatement      // those that can be sent
	lost     bool                 // the server did not have our prepared statements
	close    bool                 // the connection must not be used again
}

var pipelines = sync.Pool{New: func() any { return new(pipeline) }}

// memory is what is remembered of a connection until its end. Only the owner of the connection uses it.
type memory struct {
	prepared map[string]*prepared // by their texts
	uses     int                  // how many times it may be used without session.Guard
}

// memoryOf returns what is remembered of a connection.
func memoryOf(conn *pgconn.PgConn) *memory {
	const key = "pgxdb"
	data := conn.CustomData()
	m, _ := data[key].(*memory)
	if m == nil {
		m = &memory{prepared: map[string]*prepared{}}
		data[key] = m
	}
	return m
}

// newPipeline returns an empty pipeline for a connection. Its user calls free.
func newPipeline(conn *pgconn.PgConn) *pipeline {
	b := pipelines.Get().(*pipeline)
	b.prepared = memoryOf(conn).prepared
	return b
}

// free returns the pipeline to its pool.
func (b *pipeline) free() {
	clear(b.requests)
	e := &b.encoder
	e.buffer, e.values, e.oids = e.buffer[:0], e.values[:0], e.oids[:0]
	*b = pipeline{encoder: b.encoder, requests: b.requests[:0]}
	pipelines.Put(b)
}

// statements are those that can be sent.
func (b *pipeline) statements() []*pgdb.Statement {
	var all []*pgdb.Statement
	for _, r := range b.requests {
		all = append(all, r.statement)
	}
	return all
}

// add adds the transactions that can be sent. A statement that cannot be sent
// gets its error, and its transaction is rolled back.
func (b *pipeline) add(statements []*pgdb.Statement, unnamed bool) {
	first := 0 // of the transaction
	for i, s := range statements {
		if s.Joined && i < len(statements)-1 {
			continue
		}
		b.addTransaction(statements[first:i+1], unnamed)
		first = i + 1
	}
}

func (b *pipeline) addTransaction(statements []*pgdb.Statement, unnamed bool) {
	before := len(b.requests)
	for i, s := range statements {
		r := sentStatement{statement: s, last: i == len(statements)-1}
		var err error
		if r.values, r.oids, err = b.encoder.encode(s); err != nil {
			b.requests = b.requests[:before]
			rollBack(statements, i, err, "")
			return
		}
		if !unnamed && !s.Unnamed {
			r.prepared = b.prepared[s.SQL]
			if r.prepared == nil {
				r.prepared = newPrepared(s.SQL)
				b.prepared[s.SQL] = r.prepared
			}
		}
		b.requests = append(b.requests, r)
	}
}

// rollBack sets the errors of a transaction of which statement i failed.
func rollBack(statements []*pgdb.Statement, i int, err error, code string) {
	for _, s := range statements {
		s.Err, s.Code = pgdb.ErrRolledBack, ""
	}
	statements[i].Err, statements[i].Code = err, code
}

var binaryFormat = []int16{1}

// send puts the requests into the pipeline's buffer.
func (b *pipeline) send(p *pgconn.Pipeline) {
	for _, r := range b.requests {
		switch q := r.prepared; {
		case q == nil:
			p.SendQueryParams(r.statement.SQL, r.values, r.oids, binaryFormat, binaryFormat)
		case q.state == absent:
			p.SendPrepare(q.description.Name, r.statement.SQL, r.oids)
			q.state = sent
			fallthrough
		default:
			p.SendQueryStatement(q.description, r.values, binaryFormat, binaryFormat)
		}
		if r.last {
			p.SendPipelineSync()
		}
	}
}

// read reads the answers to all requests.
func (b *pipeline) read(p *pgconn.Pipeline) attemptResult {
	var result attemptResult
	all := b.statements()
	for first := 0; first < len(all); {
		last := first
		for !b.requests[last].last {
			last++
		}
		answered, failure, err := b.readTransaction(p, first, last)
		if err != nil {
			return b.connectionFailed(all[first:], session.Began(all[first:], answered-first, false), err, result)
		}
		if failure != nil {
			b.transactionFailed(all, first, min(answered, last), last, failure, &result)
		}
		first = last + 1
	}
	return result
}

// readTransaction reads the answers to the requests from first to last. answered is
// the first request without a result, failure the server's error if the transaction
// failed, and err the error of the connection if it failed.
func (b *pipeline) readTransaction(p *pgconn.Pipeline, first, last int) (answered int, failure *pgconn.PgError, err error) {
	answered = first
	for {
		results, err := p.GetResults()
		switch r := results.(type) {
		case *pgconn.StatementDescription:
			b.requests[answered].prepared.state = ready
		case *pgconn.ResultReader:
			s := b.requests[answered].statement
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
			if _, err = r.Close(); err == nil {
				answered++
			}
		case *pgconn.PipelineSync:
			if failure == nil {
				for _, r := range b.requests[first : last+1] {
					r.statement.Err = nil
				}
			}
			return answered, failure, nil
		case nil:
			if err == nil {
				err = errPending
			}
		}
		if err != nil {
			e := serverError(err)
			if e == nil || isFatal(e) {
				return answered, nil, err
			}
			failure = e
		}
	}
}

// transactionFailed handles the failure of a statement that fails its transaction,
// which is from first to last.
func (b *pipeline) transactionFailed(all []*pgdb.Statement, first, failed, last int, e *pgconn.PgError, result *attemptResult) {
	retry, lost, stale := false, false, false
	if q := b.requests[failed].prepared; q != nil {
		retry = sqlstate.IsLostStatement(e.Code)
		// If its Parse failed earlier in this pipeline, the statement is missing but not lost.
		lost = retry && (q.state == ready || e.Code == sqlstate.DuplicateStatement)
		stale = sqlstate.IsStalePlan(e.Code, e.Routine, e.Message)
	}
	rollBack(all[first:last+1], failed-first, e, e.Code)
	for _, r := range b.requests[first : last+1] {
		if r.prepared != nil && r.prepared.state == sent {
			r.prepared.state = absent // the server skipped its Parse
		}
	}
	if retry || stale {
		result.retry = append(result.retry, all[first:last+1]...)
	}
	b.lost = b.lost || lost
	// The statements that the server has are not as this connection remembers them.
	b.close = b.close || lost || stale || sqlstate.ClosesConnection(e.Code)
	result.unnamed = result.unnamed || lost || stale
}

// connectionFailed handles an error that ends the connection. left are the statements of the
// first transaction without a full answer, and all statements after it. started says whether one
// of the caller's statements of that transaction was answered. If the server ended the session for a reason of
// its own, a transaction that was not committed had no effect.
func (b *pipeline) connectionFailed(left []*pgdb.Statement, started bool, err error, result attemptResult) attemptResult {
	setFailed(left, err)
	failed := attemptResult{err: err}
	if e := serverError(err); e != nil && !started {
		lost := sqlstate.IsLostByPooler(e.Code, e.Message)
		if lost || sqlstate.EndsSession(e.Code) {
			failed.retry = slices.Concat(result.retry, left)
			failed.unnamed = result.unnamed || lost
		}
		b.lost = b.lost || lost
	}
	return failed
}

// maxParameters is how many parameters the protocol allows.
const maxParameters = 65535

// encoder turns the parameters of statements into Postgres's binary format. Its
// memory is used again.
type encoder struct {
	buffer []byte
	values [][]byte
	oids   []uint32
}

// encode returns the values and the types of a statement's parameters. They stay
// valid until the memory is used again, also if the encoder's memory moves meanwhile. The type of NULL
// is 0: the text of the statement decides.
func (e *encoder) encode(s *pgdb.Statement) (values [][]byte, oids []uint32, err error) {
	if len(s.Args) > maxParameters {
		return nil, nil, fmt.Errorf("pgxdb: %d parameters, must be %d or less", len(s.Args), maxParameters)
	}
	if strings.Contains(s.SQL, "\x00") {
		return nil, nil, errors.New("pgxdb: the SQL text holds a NUL byte")
	}
	first := len(e.values)
	for _, arg := range s.Args {
		start := len(e.buffer)
		oid := uint32(0)
		switch v := arg.(type) {
		case nil:
			e.values, e.oids = append(e.values, nil), append(e.oids, 0)
			continue
		case int64:
			oid = pgtype.Int8OID
			e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(v))
		case string:
			oid = pgtype.TextOID
			e.buffer = append(e.buffer, v...)
		case []int64:
			oid = pgtype.Int8ArrayOID
			e.array(pgtype.Int8OID, len(v))
			for _, n := range v {
				e.buffer = binary.BigEndian.AppendUint32(e.buffer, 8)
				e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(n))
			}
		case []string:
			oid = pgtype.TextArrayOID
			e.array(pgtype.TextOID, len(v))
			for _, s := range v {
				e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(len(s)))
				e.buffer = append(e.buffer, s...)
			}
		default:
			return nil, nil, fmt.Errorf("pgxdb: a parameter of type %T, must be []string, []int64, string, int64 or nil", arg)
		}
		value := e.buffer[start:len(e.buffer):len(e.buffer)]
		if value == nil {
			value = []byte{} // nil would be NULL
		}
		e.values, e.oids = append(e.values, value), append(e.oids, oid)
	}
	return e.values[first:], e.oids[first:], nil
}

// array appends the header of a one-dimensional array without NULLs.
func (e *encoder) array(element uint32, length int) {
	header := []uint32{1, 0, element, uint32(length), 1} // dimensions, NULLs, type; length, first subscript
	if length == 0 {
		header = []uint32{0, 0, element}
	}
	for _, n := range header {
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, n)
	}
}
