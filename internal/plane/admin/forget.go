package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Person names the user, the client or the key whose rows Forget deletes. One field is set.
type Person struct {
	User string
	// Address is that of a client. Of IPv6, all addresses of its /64 are one client.
	Address netip.Addr
	// Key is an API key, or the key of a counter. It is not stored.
	Key   string
	KeyID int64 // an API key by its id
}

// Forgetting is what Forget has deleted, or would delete.
type Forgetting struct {
	DryRun bool        `json:"dry_run"`
	Tables []Forgotten `json:"tables"`
	// Notes are about what is left.
	Notes []string `json:"notes"`
}

// Forgotten is how many rows of a table are of the person.
type Forgotten struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
}

// traces are the names of a person in the tables.
type traces struct {
	users    []string
	keys     []string // the ids of API keys
	texts    []string // the keys of counters, and their parts
	networks []string
	refs     []string // in the log of changes
}

// Forget deletes all rows that are about a person, in one transaction: of the counters, the
// audit log, the usage, the overrides and the bans, and with account also of the users and the
// API keys. A dry run only counts them. Rows of the counters are deleted last, since proxies wait
// for them until the end of the transaction.
func (d *Database) Forget(ctx context.Context, p *Person, account, dryRun bool) (*Forgetting, error) {
	var f *Forgetting
	hasPolicy, err := d.hasTable(ctx, "rate_limit_rules")
	if err != nil {
		return nil, err
	}
	t, err := d.tracesOf(ctx, p, hasPolicy)
	if err != nil {
		return nil, err
	}
	counts, err := d.counterTables(ctx)
	if err != nil {
		return nil, err
	}
	err = d.together(ctx, func(w *work) {
		f = &Forgetting{DryRun: dryRun, Tables: []Forgotten{}, Notes: []string{}}
		exists, err := w.hasTable(ctx, "rate_limit_audit")
		if w.fail(err); exists {
			w.forget(f, "rate_limit_forget_history($1::text[], $2::bigint[], $3::inet[], $4::text[], $5, $6)", t.users, t.keys, t.networks, numbered(t.texts), p.User != "", dryRun)
		}
		if hasPolicy {
			w.forget(f, "rate_limit_forget_policy($1::text[], $2::bigint[], $3::inet[], $4, $5)", t.users, t.keys, t.networks, account, dryRun)
			for _, lines := range some[int64](w, "SELECT count(*) FROM rate_limit_changes WHERE ref = ANY ($1::text[]) HAVING count(*) > 0", t.refs) {
				f.Notes = append(f.Notes, fmt.Sprintf("%d lines of rate_limit_changes have the user, the API key or the network. Proxies need them, and delete them after 30 days.", lines))
			}
		}
		for i := range counts {
			w.forgetCounters(f, t, &counts[i], hasPolicy)
		}
	})
	if err != nil {
		return nil, err
	}
	live, err := d.LiveProxies(ctx)
	if err == nil && len(live) > 0 {
		f.Notes = append(f.Notes, "Proxies run: "+strings.Join(live, ", ")+". They may write what they have in memory, which are the records of some seconds and leased units: run the command again after a minute.")
	}
	return f, err
}

// tracesOf reads the names of a person in the tables.
func (d *Database) tracesOf(ctx context.Context, p *Person, hasPolicy bool) (*traces, error) {
	t := &traces{}
	which, arg := "", any(nil)
	switch {
	case p.User != "":
		key, err := userCounter(p.User)
		if err != nil {
			return nil, err
		}
		t.users = []string{p.User}
		t.texts = append(storedKeys(p.User), key, "user/"+p.User) // the last one counts refusals for bans
		t.refs = []string{p.User, "user/" + p.User}
		which, arg = "k.user_id = $1::text", p.User
	case p.Key != "":
		digest := policy.Digest(p.Key)
		t.texts = storedKeys(p.Key)
		which, arg = "k.digest = $1::bytea", digest[:]
	case p.KeyID > 0:
		t.keys = []string{strconv.FormatInt(p.KeyID, 10)}
		which, arg = "k.id = $1::bigint", p.KeyID
	case p.Address.IsValid():
		address := p.Address.Unmap().WithZone("")
		network := policy.NetworkOf(address).String()
		client := strings.TrimSuffix(network, "/32") // as counters have it
		t.texts = []string{address.String(), client, "ip:" + client, "network/" + network}
		t.networks = []string{network}
		t.refs = []string{"network/" + network}
		return t, nil
	default:
		return nil, errors.New("--user, --ip, --key or --key-id: missing: one of them must say who is to be forgotten")
	}
	if !hasPolicy {
		return t, nil
	}
	found, err := rows[struct {
		ID     int64
		Digest []byte
	}](ctx, d, "SELECT k.id, k.digest FROM rate_limit_api_keys k WHERE "+which, arg)
	for _, k := range found {
		id, digest := strconv.FormatInt(k.ID, 10), hex.EncodeToString(k.Digest)
		t.keys = append(t.keys, id)
		// A zone that counts by a header has the digest of the API key.
		t.texts = append(t.texts, "key/"+id, "sha256:"+digest)
		t.refs = append(t.refs, digest, "key/"+digest)
	}
	return t, err
}

// forget runs a function that deletes rows, or counts them, and returns the tables.
func (w *work) forget(f *Forgetting, function string, args ...any) {
	f.Tables = append(f.Tables, list[Forgotten](w, "SELECT * FROM "+function, args...)...)
}

// A key can be the values of several things with spaces between them. At the place of an API key in the
// key of a rule's counter, only the id of a key counts: a user may have a number for a name.
const (
	tracedSQL = `SELECT c.prefix, c.key FROM %s c LEFT JOIN %s r ON c.prefix LIKE 'rule/%%' AND split_part(c.prefix, '/', 2) = r.counter
WHERE EXISTS (SELECT FROM unnest(string_to_array(c.key, ' ')) WITH ORDINALITY AS p(part, place)
		WHERE part = ANY (CASE WHEN 'key' IN (r.count_by[place], split_part(r.count_by[place], '|', substring(part FROM '^([1-9])[|]')::int)) THEN $1::text[] ELSE $2::text[] END))
	OR r.name IS NULL AND c.key = ANY ($2::text[])`
	// noRules takes the place of the table of rules.
	noRules = `(SELECT NULL::text AS name, NULL::text AS counter, NULL::text[] AS count_by WHERE false)`
	// Proxies lock rows in this order, too. Rows of which requests that run hold slots stay.
	deleteCountersSQL = `WITH locked AS MATERIALIZED (SELECT c.prefix, c.key FROM %[1]s c JOIN unnest($1::text[], $2::text[]) AS u(prefix, key) USING (prefix, key)
	ORDER BY c.prefix COLLATE "C", c.key COLLATE "C" FOR UPDATE OF c)
DELETE FROM %[1]s c USING locked l WHERE c.prefix = l.prefix AND c.key = l.key AND %[2]s`
)

// numbered are texts, and the same as alternatives of a key.
func numbered(texts []string) []string {
	all := slices.Clone(texts)
	for number := 1; number <= 9; number++ {
		for _, text := range texts {
			all = append(all, policy.AlternativeKey(number, text, false))
		}
	}
	return all
}

// forgetCounters deletes the rows of a table of counts. It finds them before it locks one.
func (w *work) forgetCounters(f *Forgetting, t *traces, table *counterTable, hasPolicy bool) {
	rules := noRules
	if hasPolicy {
		rules = "rate_limit_rules"
	}
	found := list[struct{ Prefix, Key string }](w, fmt.Sprintf(tracedSQL, table.name, rules), numbered(t.keys), numbered(t.texts))
	n := int64(len(found))
	if !f.DryRun && n > 0 {
		var prefixes, keys []string
		for _, c := range found {
			prefixes, keys = append(prefixes, c.Prefix), append(keys, c.Key)
		}
		n = w.execute(fmt.Sprintf(deleteCountersSQL, table.name, table.idle()), prefixes, keys)
	}
	if left := int64(len(found)) - n; left > 0 {
		f.Notes = append(f.Notes, fmt.Sprintf("%d counters of %s stay: requests that run hold slots of them. Run the command again when they have ended.", left, table.name))
	}
	f.Tables = append(f.Tables, Forgotten{table.name, n})
}
