package history

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// table lists the columns that a Writer sends to an SQL function. The numbers and texts of a tableRow have
// the order of the table's numbers and texts. Each column is sent as an array in a named argument, so the SQL
// function does not depend on this order.
type table struct {
	function       string
	shared         []string // arguments with the same value for all rows
	numbers, texts []string
	sql            string // the call of the function
}

// The numbers of an auditRow, by their index. A number below 0 is NULL.
const (
	auditTime = iota // in microseconds since 1970
	auditCost
	auditCount
	auditQuota
	auditRemaining
	auditKeyID
	auditRetry
	auditDuration
	auditStatus
	auditNumbers // the number of the constants above
)

// The texts of an auditRow, by their index. "" is NULL.
const (
	auditOutcome = iota
	auditShadow  // "t" or "f"
	auditReason
	auditModel
	auditPrefix
	auditLimit
	auditKey
	auditUser
	auditTier
	auditAddress
	auditHost
	auditMethod
	auditPath
	auditAlso // as a literal of a text[]
	auditUnit
	auditWeight
	auditTexts
)

var audit = newTable(&table{
	function: "rate_limit_record_audit", shared: []string{"node", "region"},
	numbers: []string{
		auditTime: "time", auditCost: "cost", auditCount: "count", auditQuota: "quota",
		auditRemaining: "remaining", auditKeyID: "key_id", auditRetry: "retry_after_ms",
		auditDuration: "duration_us", auditStatus: "status",
	},
	texts: []string{
		auditOutcome: "outcome", auditShadow: "shadow", auditReason: "reason", auditModel: "model",
		auditPrefix: "prefix",
		auditLimit:  "limit_name", auditKey: "key", auditUser: "user_id", auditTier: "tier",
		auditAddress: "address", auditHost: "host", auditMethod: "method", auditPath: "path",
		auditAlso: "also", auditUnit: "unit", auditWeight: "weight",
	},
})

// The numbers of a cell, by their index.
const (
	cellTime = iota // in microseconds since 1970
	cellKeyID
	cellRequests
	cellAdmitted // the first of six, in the order of outcome.Kind
	cellLimited
	cellBlocked
	cellRejected
	cellOverloaded
	cellFailed
	cellShadow
	cellSettled
	cellFromMemory
	cellFromLease
	cellFromDatabase
	cellLast // in microseconds since 1970
	cellNumbers
)

var metrics = newTable(&table{
	function: "rate_limit_record_metrics", shared: []string{"region"},
	numbers: []string{
		cellTime: "time", cellKeyID: "key_id", cellRequests: "requests", cellAdmitted: "admitted",
		cellLimited: "limited", cellBlocked: "blocked", cellRejected: "rejected",
		cellOverloaded: "overloaded", cellFailed: "failed", cellShadow: "shadow",
		cellSettled: "settled", cellFromMemory: "from_memory", cellFromLease: "from_lease",
		cellFromDatabase: "from_database", cellLast: "last_request",
	},
	texts: []string{"user_id", "prefix", "limit_name", "unit", "endpoint", "durations"},
})

// newTable sets the call of a table's function.
func newTable(t *table) *table {
	var names []string
	names = append(append(append(names, t.shared...), t.numbers...), t.texts...)
	for i, name := range names {
		names[i] = `"` + name + `" => $` + strconv.Itoa(i+1)
	}
	t.sql = "SELECT " + t.function + "(" + strings.Join(names, ", ") + ")"
	return t
}

// tableRow holds the values of a row of a table.
type tableRow struct {
	numbers []int64
	texts   []string
}

// statement returns the statement that writes rows. args holds the values of the shared arguments.
func (t *table) statement(args []any, rows []tableRow) *pgdb.Statement {
	for i := range t.numbers {
		values := make([]int64, len(rows))
		for j := range rows {
			values[j] = rows[j].numbers[i]
		}
		args = append(args, values)
	}
	for i := range t.texts {
		values := make([]string, len(rows))
		for j := range rows {
			values[j] = rows[j].texts[i]
		}
		args = append(args, values)
	}
	return &pgdb.Statement{SQL: t.sql, Args: args, Joined: true}
}
