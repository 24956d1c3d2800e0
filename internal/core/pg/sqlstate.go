package pg

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// All SQLSTATEs by which programs and functions decide, and texts of other programs that send no state of
// their own. In SQL, RL000 ends a dry run.
const (
	ProtocolViolation      = "08P01" // PgBouncer reports all its own errors with this code
	FeatureNotSupported    = "0A000"
	Untranslatable         = "22P05" // a character that the database's encoding does not have
	InvalidText            = "22P02" // text for a number, as in a statement that fails on purpose
	UniqueViolation        = "23505"
	CheckViolation         = "23514" // also of a missing partition
	ReadOnlyTransaction    = "25006" // the server is a standby or was made read-only
	InvalidStatementName   = "26000" // no prepared statement has this name
	InvalidAuthorization   = "28000"
	DependentObjects       = "2BP01" // others depend on what is dropped
	UndefinedSchema        = "3F000"
	SerializationFailure   = "40001"
	DeadlockDetected       = "40P01"
	InsufficientPrivilege  = "42501"
	InvalidName            = "42602"
	UndefinedColumn        = "42703"
	UndefinedObject        = "42704" // such as a setting that the server does not have
	UndefinedFunction      = "42883"
	UndefinedTable         = "42P01"
	DuplicateStatement     = "42P05" // another prepared statement has this name
	NoSuchConstraint       = "42P10" // ON CONFLICT on a table without its primary key, which Citus is copying
	ShardNotHere           = "RL001" // rate_limit_guard raises it, and the next one while a shard moves
	ShardMoves             = "RL002"
	PolicyWarning          = "RL003" // of a change that is probably not meant
	TooManyConnections     = "53300"
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
	nameOfChargeCheck      = "amounts_of_a_charge"
)

// LoginError returns the error of a login. It is a pgdb.ErrConfiguration if the server or a pooler refuses a
// parameter of the DSN.
func LoginError(err error, code, message string) error {
	if code == UndefinedObject || code == InvalidName ||
		code == ProtocolViolation && strings.Contains(message, "unsupported startup parameter") {
		return fmt.Errorf("%w: %w", pgdb.ErrConfiguration, err)
	}
	return err
}

// IsTransient reports whether the same transaction may succeed on a retry. The store then retries it.
func IsTransient(code string) bool {
	return code == SerializationFailure || code == DeadlockDetected
}

// IsMissingTable reports whether a table or a column is missing. The store then migrates the tables.
func IsMissingTable(code string) bool {
	return code == UndefinedTable || code == UndefinedColumn
}

// IsMissing reports whether a table, a column, a function or a schema is missing.
func IsMissing(code string) bool {
	return IsMissingTable(code) || code == UndefinedFunction || code == UndefinedSchema
}

// IsMissingDay reports whether the ledger refused a row because it has no open partition for its day.
func IsMissingDay(code, message string) bool {
	return code == CheckViolation && !strings.Contains(message, nameOfChargeCheck)
}

// IsBadValue reports whether the server rejects a value of a statement. The store then runs each entry in a
// statement of its own, so that the other entries are decided.
func IsBadValue(code string) bool { return strings.HasPrefix(code, classDataException) }

// EncodingHint explains how to avoid Untranslatable.
const EncodingHint = "the encoding of the database cannot store this text: use only characters that it " +
	"has, or make the database with ENCODING 'UTF8'"

// IsRowSecurity reports whether row level security made a statement fail.
func IsRowSecurity(code, message string) bool {
	return code == InsufficientPrivilege && strings.Contains(message, "row-level security")
}

// RowSecurityHint explains how to make rows visible that row level security hides.
const RowSecurityHint = "row level security hides rows of the table from this role: ALTER TABLE ... " +
	"DISABLE ROW LEVEL SECURITY, for each table that the view rate_limit_state names, or " +
	"ALTER ROLE ... BYPASSRLS"

// isLostStatement reports whether a prepared statement is missing, or exists although this session did
// not prepare it. Both happen behind a pooler that gives each transaction another session. A driver
// retries the transaction without prepared statements.
func isLostStatement(code string) bool {
	return code == InvalidStatementName || code == DuplicateStatement
}

// isLostByPooler reports whether a pooler ends the session because it lacks a prepared statement. A
// driver retries the transaction without prepared statements.
func isLostByPooler(e *ServerError) bool {
	return e.Code == ProtocolViolation && strings.Contains(e.Message, messageOfLostStatement)
}

// isStalePlan reports whether a change of a table made a prepared statement invalid. Not every pooler passes
// on the server function that raised the error. A driver prepares the statement again and retries the
// transaction.
func isStalePlan(e *ServerError) bool {
	return e.Code == FeatureNotSupported &&
		(e.Routine == routineOfStalePlan || e.Message == messageOfStalePlan)
}

// EndsSession reports whether the server ends the session for a reason other than a statement.
func EndsSession(code string) bool {
	switch code {
	case AdminShutdown, CrashShutdown, CannotConnectNow, DatabaseDropped, IdleSessionTimeout:
		return true
	}
	return false
}

// ClosesConnection reports whether a driver must close the connection: the server ends it, or is
// read-only while the next connection may lead to a primary.
func ClosesConnection(code string) bool {
	return code == ReadOnlyTransaction || EndsSession(code)
}

// The classes of errors without an SQLSTATE, and of SQLSTATEs that are not in Classes.
const (
	TimeoutClass    = "timeout"
	ConnectionClass = "connection"
	OtherClass      = "other"
)

// ClassCount is the number of Classes.
const ClassCount = 19

// Classes lists the classes by which errors are counted: the first two characters of SQLSTATEs, and the
// classes above. The set is fixed, so that a server cannot add labels to metrics.
var Classes = [ClassCount]string{
	"08", "0A", "22", "23", "25", "26", "28", "3D", "40", "42", "53", "54", "55", "57", "58", "XX",
	TimeoutClass, ConnectionClass, OtherClass,
}

// ClassOf returns the index in Classes for an SQLSTATE or one of the classes above.
func ClassOf(code string) int {
	for i, class := range Classes {
		if strings.HasPrefix(code, class) {
			return i
		}
	}
	return ClassCount - 1
}
