package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// row is a decoded row of a statement of this package. Each statement sets some of the fields.
type row struct {
	Rule     *Rule
	Override *Override
	InForce  int64
	Ban      *Ban
	Price    *Price
	Identity *Identity
	Above    []*Identity // the users above Identity, the nearest first

	// A poll returns one row with Head, and one row with Kind and Ref for each change.
	Head      *head
	Kind, Ref string

	err error
}

// decode decodes rows. It sets row.err if a row has unexpected types.
func decode(texts [][]byte) []*row {
	rows := make([]*row, 0, len(texts))
	for _, text := range texts {
		r := &row{}
		r.err = json.Unmarshal(text, r)
		rows = append(rows, r)
	}
	return rows
}

// ReadSnapshot reads a snapshot for Explain. The snapshot also has the rules without an effect, such as rules
// with the mode off. The error wraps ratelimit.ErrUnavailable if the database does not answer.
func ReadSnapshot(ctx context.Context, db pgdb.DB) (*Snapshot, error) {
	p := New(db, Settings{})
	defer p.Close()
	p.rulesSQL = rulesSQL("true")
	p.due = allChanged
	err := p.load(ctx)
	if err == nil && p.due.bannedKeys {
		err = unavailable(errors.New("the banned API keys cannot be read"))
	}
	return p.compiled, err
}

// decoded holds the decoded rows of rulesSQL, bansSQL and bannedKeysSQL.
type decoded struct {
	rules     []Rule
	overrides []Override
	bans      []Ban
	prices    []Price
	inForce   int64 // the number of bans in force
}

// decodePolicy decodes rows. If a rule cannot be decoded, it sets Rule.Err. If another row cannot be
// decoded, it returns an error.
func decodePolicy(texts [][]byte) (*decoded, error) {
	d := &decoded{}
	for _, r := range decode(texts) {
		switch {
		case r.Rule != nil:
			r.Rule.Err = r.err
			if r.err == nil && r.Rule.Newer != "" {
				r.Rule.Err = fmt.Errorf("%s: only a newer version of this program can match by it: upgrade "+
					"this program", r.Rule.Newer)
			}
			d.rules = append(d.rules, *r.Rule)
		case r.err != nil:
			return nil, fmt.Errorf("an override, a ban or a price: %w", r.err)
		case r.Override != nil:
			d.overrides = append(d.overrides, *r.Override)
		case r.Ban != nil:
			d.bans = append(d.bans, *r.Ban)
		case r.Price != nil:
			d.prices = append(d.prices, *r.Price)
		}
		d.inForce += r.InForce
	}
	return d, nil
}

// ReadIdentity reads an identity. Identity.Known is false if the database does not have the key or the user.
// The error wraps ratelimit.ErrUnavailable if the database does not answer.
func ReadIdentity(db pgdb.DB, credential Credential) (*Identity, error) {
	task := &lookup{credential: credential}
	if err := readIdentities(db, []*lookup{task}); err != nil {
		return nil, err
	}
	return task.identity, task.err
}

// readIdentities looks up the senders of tasks in one statement, and sets the identity and the error of each
// task. The senders must differ, and mayBeUser must hold for users. If the database does not have a sender,
// its Identity is not Known.
func readIdentities(db pgdb.DB, tasks []*lookup) error {
	digests := []string{}
	users := []string{}
	bySender := make(map[Credential]*lookup, len(tasks))
	for _, task := range tasks {
		bySender[task.credential] = task
		task.identity = &Identity{Digest: task.credential.Digest, User: task.credential.User}
		task.err = nil
		if task.credential.User == "" {
			digests = append(digests, task.credential.Digest)
		} else {
			users = append(users, task.credential.User)
		}
	}
	const what = "looking up API keys and users"
	texts, err := readWhole(context.Background(), db, lookupTimeout, what, identitiesSQL, digests, users)
	if errors.Is(err, errIncomplete) {
		err = unavailable(err)
	}
	if err != nil {
		return err
	}
	for _, r := range decode(texts) {
		if r.Identity == nil {
			continue
		}
		task := bySender[credentialOf(r.Identity)]
		if task == nil {
			continue
		}
		task.identity = r.Identity
		below := r.Identity
		for _, above := range r.Above {
			below.Parent = above
			below = above
		}
		if r.err != nil {
			task.err = fmt.Errorf("%s: %w", what, r.err)
		}
	}
	return nil
}

// readWhole is like read, for a statement with wholeSQL. readWhole returns errIncomplete if the policy did
// not have all its triggers: a restore creates the triggers last, so rows may be missing before. The
// statement sees rows and triggers in one snapshot, so the check holds for the rows that it returns.
func readWhole(
	ctx context.Context, db pgdb.DB, timeout time.Duration, what, sql string, args ...any,
) ([][]byte, error) {
	texts, err := read(ctx, db, timeout, what, &pgdb.Statement{SQL: sql, Args: args, Unnamed: true})
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		if string(text) == `{"Whole" : true}` {
			return texts, nil
		}
	}
	return nil, errIncomplete
}

// read runs a statement with one column, and returns the value of each row. Errors begin with what, a
// description of the statement.
func read(
	ctx context.Context, db pgdb.DB, timeout time.Duration, what string, statement *pgdb.Statement,
) ([][]byte, error) {
	statements := []*pgdb.Statement{statement}
	if !statement.Unnamed { // else a guard does that
		statements = []*pgdb.Statement{{SQL: pg.AllRowsSQL, Joined: true}, statement}
	}
	err := db.Run(ctx, timeout, statements)
	if err != nil {
		err = unavailable(err)
	} else {
		err = statement.Err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return pg.Columns(statement.Result)
}

// unavailable wraps the error of a connection that failed or did not answer in time.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, cause) }
