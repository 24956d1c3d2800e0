package policy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// ReadRules, ReadBans, ReadKey and ReadUser read once what a Policy keeps up to date, for programs that explain what a proxy
// does. Their errors wrap ratelimit.ErrUnavailable if the database does not answer.

// ReadRules reads the rules that can have an effect now or later, and the overrides for tiers,
// for Compile.
func ReadRules(ctx context.Context, db pgdb.DB) ([]Rule, []Override, error) {
	rows, err := readWhole(ctx, db, loadTimeout, "reading the rules", rulesSQL)
	if err != nil {
		return nil, nil, err
	}
	return DecodeRules(rows)
}

// RulesSQL is the statement of ReadRules, for programs that run it in a transaction of their own.
// Its rows have three texts.
func RulesSQL() string { return rulesSQL }

// ReadBans reads the bans that hold, for Compile.
func ReadBans(ctx context.Context, db pgdb.DB) ([]Ban, error) {
	rows, err := readWhole(ctx, db, loadTimeout, "reading the bans", bansSQL)
	if err != nil {
		return nil, err
	}
	keys, err := readWhole(ctx, db, loadTimeout, "reading the banned API keys", bannedKeysSQL)
	if err != nil {
		return nil, err
	}
	bans, _, err := decodeBans(append(rows, keys...))
	return bans, err
}

// ReadKey reads the identity of an API key by its Digest. Identity.Known is false if the
// database does not have the key.
func ReadKey(db pgdb.DB, digest [32]byte) (*Identity, error) {
	return readIdentity(db, credential{digest: digest})
}

// ReadUser reads the identity of a user, like ReadKey.
func ReadUser(db pgdb.DB, user string) (*Identity, error) {
	return readIdentity(db, credential{user: user})
}

func readIdentity(db pgdb.DB, s credential) (*Identity, error) {
	found, err := lookUp(db, []*lookup{{sender: s}})
	if err != nil {
		return nil, err
	}
	a := found[s.name()]
	return a.identity, a.err
}

// DecodeRules turns the texts of all rows of RulesSQL into rules and overrides, for Compile.
func DecodeRules(rows []string) ([]Rule, []Override, error) {
	if len(rows)%3 != 0 {
		return nil, nil, errColumns
	}
	var rules []Rule
	var overrides []Override
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "whole" {
			continue
		}
		if rows[i] == "rule" {
			rules = append(rules, decodeRule(rows[i+1], rows[i+2]))
			continue
		}
		var o Override
		if err := json.Unmarshal([]byte(rows[i+2]), &o); err != nil {
			return nil, nil, fmt.Errorf("the overrides of the rule %q: %w", rows[i+1], err)
		}
		overrides = append(overrides, o)
	}
	return rules, overrides, nil
}

// decodeRule is a rule of rulesSQL. If it cannot be read, only Name and Err are set.
func decodeRule(name, text string) Rule {
	r := Rule{Name: name}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Rule{Name: name, Err: err}
	}
	return r
}

// decodeBans turns rows of bansSQL and bannedKeysSQL into bans, and returns how many are in force.
func decodeBans(rows []string) ([]Ban, int64, error) {
	var bans []Ban
	var inForce int64
	if len(rows)%3 != 0 {
		return nil, 0, errColumns
	}
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "count" {
			n, err := strconv.ParseInt(rows[i+1], 10, 64)
			if err != nil {
				return nil, 0, err
			}
			inForce = n
			continue
		}
		ban := Ban{}
		if err := json.Unmarshal([]byte(rows[i+2]), &ban); err != nil {
			return nil, 0, fmt.Errorf("the ban of %s %s: %w", rows[i], rows[i+1], err)
		}
		if rows[i] == "key" {
			ban.Digest = digestOf(rows[i+1])
		}
		bans = append(bans, ban)
	}
	return bans, inForce, nil
}

// decodeIdentity is a row of identitiesSQL.
func decodeIdentity(kind, name, text string) (*Identity, error) {
	id := &Identity{}
	switch kind {
	case "key":
		id.Digest = digestOf(name)
	case "user":
		id.User = name
	}
	return id, json.Unmarshal([]byte(text), id)
}

// digestOf is a digest in hexadecimal; a wrong one is zero.
func digestOf(text string) [32]byte {
	var digest [32]byte
	decoded, err := hex.DecodeString(text)
	if err == nil && len(decoded) == len(digest) {
		copy(digest[:], decoded)
	}
	return digest
}

// answer is what the database says of a sender.
type answer struct {
	identity *Identity
	err      error // only of this sender
}

// lookUp looks senders up in one statement. Of a sender that the database does not have, nothing is Known. lookUp does not ask for a user with a name that no
// row can have: such a name would make the statement fail for all.
func lookUp(db pgdb.DB, calls []*lookup) (map[string]answer, error) {
	digests := []string{}
	users := []string{}
	found := make(map[string]answer, len(calls))
	for _, call := range calls {
		user := call.sender.user
		found[call.sender.name()] = answer{identity: &Identity{Digest: call.sender.digest, User: user}}
		if user == "" {
			digests = append(digests, hex.EncodeToString(call.sender.digest[:]))
		} else if len(user) <= ratelimit.MaxKey && utf8.ValidString(user) && strings.IndexByte(user, 0) < 0 {
			users = append(users, user)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookUpTimeout)
	defer cancel()
	rows, err := run(ctx, db, "looking up API keys and users", &pgdb.Statement{SQL: identitiesSQL, Args: []any{digests, users}, Unnamed: true}, 3)
	if err == nil {
		rows, err = whole(rows)
	}
	if errors.Is(err, errIncomplete) {
		err = unavailable(err)
	}
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(rows); i += 3 {
		id, err := decodeIdentity(rows[i], rows[i+1], rows[i+2])
		if err != nil {
			err = fmt.Errorf("looking up an API key or a user: %w", err)
		}
		found[nameOfIdentity(id)] = answer{id, err}
	}
	return found, nil
}

// read runs a statement that returns rows of width texts, for a time at most. what says in errors what it does.
func read(ctx context.Context, db pgdb.DB, timeout time.Duration, what, sql string, width int) ([]string, error) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return run(within, db, what, &pgdb.Statement{SQL: sql, Unnamed: true}, width)
}

// readWhole is read for a statement with wholeSQL, whose rows have three texts. The error is errIncomplete if the policy did not
// have all its triggers when the statement read it: a restore makes them after all rows, so that without them rows may be
// missing. One statement has one snapshot, of the rows and of the triggers.
func readWhole(ctx context.Context, db pgdb.DB, timeout time.Duration, what, sql string) ([]string, error) {
	rows, err := read(ctx, db, timeout, what, sql, 3)
	if err != nil {
		return nil, err
	}
	return whole(rows)
}

// whole removes the row of wholeSQL.
func whole(rows []string) ([]string, error) {
	for i := 0; i < len(rows); i += 3 {
		if rows[i] == "whole" && rows[i+1] == "true" {
			return append(rows[:i], rows[i+3:]...), nil
		}
	}
	return nil, errIncomplete
}

// run is read for a statement with arguments. It returns the texts of all rows. NULL is "".
func run(ctx context.Context, db pgdb.DB, what string, statement *pgdb.Statement, width int) ([]string, error) {
	err := db.Run(ctx, []*pgdb.Statement{statement})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, unavailable(err))
	}
	rows, err := texts(statement, width)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return rows, nil
}

// texts are the columns of all rows of a result.
func texts(statement *pgdb.Statement, width int) ([]string, error) {
	if statement.Err != nil {
		return nil, statement.Err
	}
	columns, err := results.Columns(statement.Result)
	if err != nil || len(columns) != statement.Rows*width {
		return nil, errColumns
	}
	all := make([]string, 0, len(columns))
	for _, column := range columns {
		all = append(all, string(column))
	}
	return all, nil
}

var errColumns = errors.New("the server's answer does not have the statement's columns")

// unavailable is an error of a connection that failed, or that did not answer in time.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, cause) }
