// Package pgdb defines the driver for Postgres that the stores use: a DB, which runs Statements in pipelines.
// Package pgxdb implements it over pgx.
package pgdb

import (
	"context"
	"errors"
	"time"
)

// DB runs SQL statements. Implementations are safe for concurrent use.
type DB interface {
	// Run sends the statements over one connection in one pipeline, in order, and reads their results. Each
	// statement is a transaction of its own unless Statement.Joined is set. If a statement fails, Run sets
	// its Err and continues with the next transaction. A DB retries a transaction only if earlier
	// attempts certainly had no effect.
	//
	// Run waits for a connection for up to timeout. From the time at which the statements are sent, it waits
	// for the results for up to timeout again: an answer that arrives in time counts even if this process
	// reads it late. Run returns nil if each statement has a result or the server's error. Otherwise it
	// returns an error that wraps ErrNotSent, ErrNoAnswer or ErrConnectionLost, and sets Err in each
	// statement that may or may not have taken effect. If ctx ends first, Run returns promptly, with an
	// error that wraps the error of ctx, and ErrNotSent if nothing was sent.
	Run(ctx context.Context, timeout time.Duration, statements []*Statement) error
	// Exec runs SQL text without parameters. The text may hold several commands. Exec waits like Run, and
	// returns an error like that of Run, or the server's error.
	Exec(ctx context.Context, timeout time.Duration, sql string) error
	// Close closes the connections. Statements in flight may fail.
	Close()
}

// The outcomes of a Run without results.
var (
	// ErrNotSent means that no statement took effect, because there was no connection. If the error wraps no
	// other outcome, other calls used all connections, or the context ended.
	ErrNotSent = errors.New("not sent")
	// ErrNoAnswer means that the server did not answer in time: to the statements, or to a login if the error
	// also wraps ErrNotSent.
	ErrNoAnswer = errors.New("no answer in time")
	// ErrConnectionLost means that the connection ended before the results arrived. If the error also wraps
	// ErrNotSent, no connection could be made.
	ErrConnectionLost = errors.New("connection lost")
	// ErrConfiguration is also wrapped if a login failed because the server refuses a parameter of the DSN.
	ErrConfiguration = errors.New("the server refuses the configuration")
)

// Statement is one SQL statement, its parameters and its result. The caller sets the fields up
// to Synchronous, and Run sets the fields after it.
type Statement struct {
	// SQL is the text, with $1, $2 … for the parameters. A store uses few texts, so a DB prepares each text
	// once on each connection.
	SQL string
	// Args are the parameters. Each is a []string (text[]), []int64 (bigint[]), string (text), int64
	// (bigint) or nil (of the type that the text implies). Nil and a nil slice are NULL. If a parameter has
	// another type, the whole call may fail.
	Args []any
	// Unnamed sends the text without preparing it, so that the server plans it for these parameters. Set it
	// if a generic plan would read a whole table.
	Unnamed bool
	// Alone marks a statement that must not run inside a transaction, such as one with CONCURRENTLY. It
	// excludes Joined.
	Alone bool
	// Joined puts the next statement into the same transaction. Consecutive joined statements and
	// the statement after them take effect together or not at all.
	Joined bool
	// Synchronous marks a statement whose commit may wait for a synchronous standby. A DB runs such
	// statements on at most half of its connections, or on one, so that others go on if a standby is lost.
	Synchronous bool
	// Result holds the rows one after another. A row holds its columns; a column is its length in four
	// bytes (big endian, -1 for NULL) and its value in Postgres's binary format. A DB appends to
	// Result[:0], and so reuses the memory of an earlier result.
	Result []byte
	// Rows is the number of rows in Result.
	Rows int
	// Err is nil if the statement took effect. If a statement of a transaction fails, its Err is the
	// server's error, and the Err of the transaction's other statements is ErrRolledBack. Result still holds
	// the rows of the statements before the failed one.
	Err error
	// Code is the SQLSTATE of Err, or "" if the server sent none.
	Code string
}

// ErrRolledBack is the Err of a statement rolled back because another of its transaction failed.
var ErrRolledBack = errors.New("ratelimit/pgdb: rolled back with its transaction")
