// Package sqlstate lists the SQLSTATEs that the store and its drivers act on, and
// says what the store or a driver does after each of them.
package sqlstate

import (
	"errors"
	"strings"
)

// ErrNotSent is the error that a driver gives a statement which certainly did not reach the server.
var ErrNotSent = errors.New("not sent")

// ErrNoTurn is in the error of a call of a driver that had no connection in time because others used all of them, or
// because this process was late. That says nothing about the database.
var ErrNoTurn = errors.New("no turn")

// The codes, in order.
const (
	ProtocolViolation      = "08P01" // PgBouncer reports all its own errors with this code
	FeatureNotSupported    = "0A000"
	InvalidByteSequence    = "22021" // text that its encoding does not have, such as a NUL byte
	Untranslatable         = "22P05" // text with a character that the encoding of the database does not have
	InvalidText            = "22P02" // text that is no number, among others: how a transaction fails on purpose
	ReadOnlyTransaction    = "25006" // the server is a standby or was made read-only
	InvalidStatementName   = "26000" // no prepared statement has this name
	InvalidAuthorization   = "28000"
	SerializationFailure   = "40001"
	DeadlockDetected       = "40P01"
	InsufficientPrivilege  = "42501"
	UndefinedColumn        = "42703"
	UndefinedTable         = "42P01"
	DuplicateStatement     = "42P05" // another prepared statement has this name
	NoSuchConstraint       = "42P10" // ON CONFLICT on a table without its primary key, which Citus is copying
	LockNotAvailable       = "55P03" // lock_timeout has passed
	AdminShutdown          = "57P01"
	CrashShutdown          = "57P02"
	CannotConnectNow       = "57P03"
	DatabaseDropped        = "57P04"
	IdleSessionTimeout     = "57P05"
	classDataException     = "22"
	routineOfStalePlan     = "RevalidateCachedQuery"
	messageOfStalePlan     = "cached plan must not change result type"
	messageOfLostStatement = "prepared statement"
)

// IsTransient reports whether the same transaction may succeed if it is run
// again. The store does that.
func IsTransient(code string) bool {
	return code == SerializationFailure || code == DeadlockDetected
}

// IsMissingTable reports whether the tables are missing or lack a column. The
// store creates or alters them.
func IsMissingTable(code string) bool {
	return code == UndefinedTable || code == UndefinedColumn
}

// IsAboutEntry reports whether one of a statement's rows or values is the cause: a value
// that the server does not accept, or a row that another transaction has locked. The store
// runs each by itself then, so that the others are decided.
func IsAboutEntry(code string) bool {
	return strings.HasPrefix(code, classDataException) || code == LockNotAvailable
}

// EncodingHint says what to do about Untranslatable.
const EncodingHint = "the encoding of the database cannot store this text: use only characters that it has, or make the database with ENCODING 'UTF8'"

// IsLostStatement reports whether a prepared statement is missing, or exists
// although this session did not prepare it. Both happen behind a pooler that
// gives each transaction another session. A driver runs the transaction again
// without prepared statements.
func IsLostStatement(code string) bool {
	return code == InvalidStatementName || code == DuplicateStatement
}

// IsLostByPooler reports whether a pooler ends the session because it does not
// have a prepared statement. A driver runs the transaction again without
// prepared statements.
func IsLostByPooler(code, message string) bool {
	return code == ProtocolViolation && strings.Contains(message, messageOfLostStatement)
}

// IsStalePlan reports whether a prepared statement has become invalid since a
// table was altered. routine is the function of the server that reports it; not
// every pooler passes it on. A driver prepares the statement again and runs the
// transaction again.
func IsStalePlan(code, routine, message string) bool {
	return code == FeatureNotSupported && (routine == routineOfStalePlan || message == messageOfStalePlan)
}

// EndsSession reports whether the server ends the session with this for a reason
// of its own, not because of a statement.
func EndsSession(code string) bool {
	switch code {
	case AdminShutdown, CrashShutdown, CannotConnectNow, DatabaseDropped, IdleSessionTimeout:
		return true
	}
	return false
}

// ClosesConnection reports whether a driver must not use the connection again:
// the server ends it, or cannot be written to, and the next connection may lead
// to a server that can.
func ClosesConnection(code string) bool {
	return code == ReadOnlyTransaction || EndsSession(code)
}
