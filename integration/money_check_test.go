package integration

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The times within which an answer is settled, while the database answers, and within which a charge that
// crosses a threshold has its notice.
const (
	settledWithin = 2 * time.Second
	noticedWithin = 10 * time.Second
)

// charged is the row of a question in the ledger.
type charged struct {
	micros, money  int64
	users, charges string
}

// account is the budget of a user in the model.
type account struct {
	first, quota int64 // before and after an upgrade
	used         int64
	crossed      map[int64]int64 // when the ledger crossed a percentage of first
	last         time.Time       // when the last request that passed was sent
	most         int64           // the most that a request held
	beyond       int64           // what answers cost beyond their holds, unless settled before last
}

// values returns the rows of a query by their first column.
func (b *budgetBed) values(sql string) map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, text := range cluster.Texts(b.t, b.dsn, "SELECT concat_ws(' ', "+sql) {
		name, value, _ := strings.Cut(text, " ")
		all[name] = value
	}
	return all
}

// check compares the counters, the ledger, the invoices, the notices, and the account of the models.
func (b *budgetBed) check() {
	accounts := map[string]*account{}
	paid := b.values("user_id, (max(budget) * 1e9)::bigint) FROM payments GROUP BY user_id")
	for user := range b.values("user_id) FROM rate_limit_users") {
		a := &account{first: budgetTiers[user[:1]] * b.requests * 1000, crossed: map[int64]int64{}}
		a.quota = a.first
		_, _ = fmt.Sscan(paid[user], &a.quota)
		accounts[user] = a
	}
	rows, invoices := b.addLedger(accounts)
	want, kinds := map[string]string{}, map[string]int{}
	for user, a := range accounts {
		want[user] = fmt.Sprint(a.used, " ", a.quota)
	}
	check.Equal(b.t, "the counters and the quotas",
		b.values("key, (used * 1e9)::bigint, (quota * 1e9)::bigint) FROM rate_limit_used"), want)
	got := map[string]string{}
	for user := range accounts { // all at once take minutes after a million requests
		maps.Copy(got, b.values(fmt.Sprintf(`concat('%[1]s/', split_part(model, '-', 1)), sum(requests),
			sum(input), sum(cache_read), sum(cache_write), sum(output), (sum(money) * 1e9)::bigint)
			FROM rate_limit_invoice('%[1]s') GROUP BY split_part(model, '-', 1)`, user)))
	}
	check.Equal(b.t, "the invoices", got, invoices)
	b.settledWithin = settledWithin
	for name, row := range rows { // a settlement that a killed proxy lost may have waited as long as others
		took := time.UnixMicro(row.micros).Sub(b.questions[name].done)
		b.settledWithin = max(b.settledWithin, took+time.Second)
	}
	for _, q := range b.questions {
		kinds[b.compare(q, rows)]++
	}
	b.t.Log(kinds, "settled within", b.settledWithin)
	b.checkOver(accounts, rows)
	b.checkNotices(accounts)
}

// addLedger reads the ledger, and adds what its rows cost by the account of the models, by user and for the
// invoices.
func (b *budgetBed) addLedger(accounts map[string]*account) (map[string]charged, map[string]string) {
	b.t.Helper()
	rows, sums, invoices := map[string]charged{}, map[string]*[6]int64{}, map[string]string{}
	for _, text := range cluster.Texts(b.t, b.dsn, `SELECT concat_ws(' ', model,
		(extract(epoch FROM time) * 1e6)::bigint, (money * 1e9)::bigint,
		array_to_string("user" || ancestors, ','),
		(SELECT string_agg(concat(c->>'key', '=', ((c->>'units')::numeric * 1e9)::bigint), ',')
			FROM jsonb_array_elements(charges) c)) FROM rate_limit_ledger_rows() ORDER BY time`) {
		var name string
		var row charged
		if _, err := fmt.Sscan(text, &name, &row.micros, &row.money, &row.users, &row.charges); err != nil {
			b.t.Fatalf("%s: %v", text, err)
		}
		if rows[name].micros > 0 {
			b.t.Errorf("%s is twice in the ledger", name)
		}
		rows[name] = row
		q := b.questions[name]
		n := q.reported // or an estimate of it
		for _, user := range strings.Split(row.users, ",") {
			a := accounts[user]
			a.used += q.cost
			for _, percent := range []int64{50, 80, 100} {
				if a.crossed[percent] == 0 && a.used*100 >= a.first*percent {
					a.crossed[percent] = row.micros
				}
			}
			key := user + "/" + q.model.name
			if sums[key] == nil {
				sums[key] = &[6]int64{}
			}
			for i, n := range []int64{1, n[0], n[1], n[2], n[3], q.cost} {
				sums[key][i] += n
			}
			invoices[key] = strings.Trim(fmt.Sprint(*sums[key]), "[]")
		}
	}
	return rows, invoices
}

// compare compares a question's row of the ledger with the account of its model, and returns what became of
// it. The row of an answer may have died with its proxy.
func (b *budgetBed) compare(q *question, rows map[string]charged) string {
	row, isCharged := rows[q.name]
	lost := slices.ContainsFunc(b.kills[q.proxy], func(at time.Time) bool {
		return q.sent.Before(at) && q.done.After(at.Add(-b.settledWithin))
	})
	costs := q.arrivals > 0 && q.kind != "fails"
	if q.arrivals > 1 || isCharged && !costs || costs && !lost && (!isCharged || q.status != http.StatusOK) {
		b.t.Errorf("%s (%s %d) has reached its model %d times, and is charged %v", q.name, q.kind, q.status,
			q.arrivals, row)
	}
	if isCharged {
		moved := row.users == strings.Join(chain(q.person, true), ",")
		if q.sent.After(b.moved) {
			moved = true
		} else if !q.began.IsZero() && q.began.Before(b.moving) {
			moved = false
		}
		users := chain(q.person, moved)
		want := charged{micros: row.micros, money: q.cost, users: strings.Join(users, ",")}
		slices.Sort(users)
		end := fmt.Sprint("=", q.cost)
		if want.charges = strings.Join(users, end+",") + end; row != want {
			b.t.Errorf("%s (%s %d) is charged %v, want %v", q.name, q.kind, q.status, row, want)
		}
	}
	if costs && lost {
		return fmt.Sprint("of killed proxies, charged: ", isCharged)
	}
	return fmt.Sprint(q.kind, " ", q.status)
}

// checkOver fails the test if a budget is exceeded by more than one answer and what running answers cost
// beyond what they hold, if clients were told that one is used up and it was not, or if none is.
func (b *budgetBed) checkOver(accounts map[string]*account, rows map[string]charged) {
	users := func(q *question) []string {
		if row, ok := rows[q.name]; ok {
			return strings.Split(row.users, ",")
		}
		return chain(q.person, q.sent.After(b.moving))
	}
	for _, q := range b.questions {
		isUsed := func(user string) bool { return accounts[user].used >= accounts[user].first }
		if q.told && !slices.ContainsFunc(users(q), isUsed) {
			b.t.Errorf("%s was told that a budget is used up", q.name)
		}
		for _, user := range users(q) {
			if a := accounts[user]; q.arrivals > 0 {
				a.most = max(a.most, q.reserved)
				if q.sent.After(a.last) {
					a.last = q.sent
				}
			}
		}
	}
	for _, q := range b.questions {
		for _, user := range users(q) {
			if a := accounts[user]; q.arrivals > 0 && q.done.Add(b.settledWithin).After(a.last) {
				a.beyond += max(0, q.cost-q.reserved)
			}
		}
	}
	usedUp := 0
	for user, a := range accounts {
		if over := a.used - a.quota; over >= 0 {
			usedUp++
			text := fmt.Sprintf("%s is exceeded by %d: by one answer at most %d, by what answers cost "+
				"beyond what they held at most %d", user, over, a.most-1, a.beyond)
			if b.t.Log(text); over > a.most-1+a.beyond {
				b.t.Error(text)
			}
		}
	}
	if usedUp == 0 && !testing.Short() {
		b.t.Error("no budget is used up")
	}
}

// checkNotices fails the test unless each threshold that was crossed has one notice, in time. Users that were
// upgraded may have crossed one of their first budget.
func (b *budgetBed) checkNotices(accounts map[string]*account) {
	notices := map[string]string{}
	await(b.t, "all notices", func() bool {
		notices = b.values(`concat(key, '/', percent), count(*), (extract(epoch FROM min(at)) * 1e6)::bigint)
			FROM rate_limit_notices WHERE (rule, limit_name) = ('budget', 'month') GROUP BY key, percent`)
		for user, a := range accounts {
			for percent := range a.crossed {
				if a.used*100 >= a.quota*percent && notices[fmt.Sprint(user, "/", percent)] == "" {
					return false
				}
			}
		}
		return true
	})
	levels, longest := map[string]bool{}, time.Duration(0)
	for name, text := range notices {
		var n, at, percent int64
		user, rest, _ := strings.Cut(name, "/")
		_, _ = fmt.Sscan(rest+" "+text, &percent, &n, &at)
		a := accounts[user]
		levels[user[:1]] = true
		if n != 1 || a.crossed[percent] == 0 {
			b.t.Errorf("%s: %d notices, %d of %d used", name, n, a.used, a.quota)
		}
		if a.quota == a.first {
			longest = max(longest, time.Duration(at-a.crossed[percent])*time.Microsecond)
		}
	}
	b.t.Logf("%d notices, the latest after %v", len(notices), longest)
	if longest > noticedWithin || len(levels) < 4 {
		b.t.Errorf("a notice came after %v, want %v at most, and some on all levels: %v", longest,
			noticedWithin, levels)
	}
}
