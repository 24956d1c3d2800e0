package admin_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// policyBench is a database with a policy.
type policyBench struct {
	testing.TB
	db   *admin.Database
	conn *pgx.Conn
}

func newPolicyBench(t testing.TB) *policyBench {
	t.Helper()
	ctx := context.Background()
	dsn := migrated(t)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	conn := cluster.Connect(t, dsn)
	t.Cleanup(func() { conn.Close(ctx) })
	return &policyBench{t, db, conn}
}

func (b *policyBench) sql(sql string) {
	b.Helper()
	if _, err := b.conn.Exec(context.Background(), sql); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

func (b *policyBench) text(sql string) string {
	b.Helper()
	var text string
	if err := b.conn.QueryRow(context.Background(), sql).Scan(&text); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return text
}

// isLoaded checks that a column's field in memory is there.
func isLoaded(t *testing.T, table int, c *columns.Column) {
	row := map[int]any{columns.Rules: policy.Rule{}, columns.Limits: policy.RuleLimit{}, columns.Overrides: policy.Override{}}[table]
	if c.Load == "" {
		return
	}
	at := reflect.TypeOf(row)
	for name := range strings.SplitSeq(c.Load, ".") {
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		field, found := at.FieldByName(name)
		if !found {
			t.Errorf("%s: %s has no field %s", c.Name, at, name)
			return
		}
		at = field.Type
	}
}

// Lists know every column of the tables, but for those that are about the row.
func TestListsKnowEveryColumn(t *testing.T) {
	b := newPolicyBench(t)
	about := map[string][]string{
		"rate_limit_users": {"created_at", "updated_at"}, "rate_limit_api_keys": {"id", "created_at"},
		"rate_limit_rules": {"created_at", "created_by", "updated_at"}, "rate_limit_overrides": {"id", "created_at", "created_by"},
	}
	for i := range columns.Tables {
		table := &columns.Tables[i]
		got := slices.Clone(about[table.Name])
		for _, c := range table.Columns {
			got = append(got, c.Name)
		}
		for _, c := range table.Columns {
			if kind := b.text("SELECT replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz') FROM pg_attribute WHERE attrelid = '" + table.Name + "'::regclass AND attname = '" + c.Name + "'"); kind != c.Kind.SQL() {
				t.Errorf("%s.%s is described as %s, and is %s", table.Name, c.Name, c.Kind.SQL(), kind)
			}
			isLoaded(t, i, &c)
		}
		slices.Sort(got)
		want := b.text("SELECT string_agg(attname, ' ' ORDER BY attname COLLATE \"C\") FROM pg_attribute WHERE attrelid = '" + table.Name + "'::regclass AND attnum > 0 AND NOT attisdropped")
		if strings.Join(got, " ") != want {
			t.Errorf("%s: lists have %q, the table %s", table.Name, got, want)
		}
	}
}
