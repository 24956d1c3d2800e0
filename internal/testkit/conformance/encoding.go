package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// latin1 makes a database in an old encoding and returns its DSN.
func latin1(t testing.TB, open openDB) string {
	server := cluster.Private(t, cluster.Options{})
	admin := open(t, server.DSN("postgres"))
	defer admin.Close()
	if err := admin.Exec(context.Background(), "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' "+
		"LC_COLLATE 'C' LC_CTYPE 'C'"); err != nil {
		t.Fatal(err)
	}
	return server.DSN("latin")
}

// testEncoding has a database in an old encoding: text in characters that it has
// is stored in that encoding, and a transaction with others fails alone.
func testEncoding(t *testing.T, open openDB) {
	d := &db{t: t, DB: open(t, latin1(t, open))}
	defer d.Close()
	d.exec("CREATE TABLE t (key text)")
	insert := "INSERT INTO t SELECT unnest($1::text[]) RETURNING key"
	for i := 0; i < 2; i++ {
		good, first, odd := statement(insert, []string{"é"}), statement(insert, []string{"a"}),
			statement(insert, []string{"b", "\U0001F600"})
		err := d.try(append(transaction(first, odd), good)...)
		if err != nil || good.Err != nil || odd.Code != "22P05" || !errors.Is(first.Err, pgdb.ErrRolledBack) {
			t.Errorf("%v: %v; %v; %v", err, first.Err, odd.Err, good.Err)
		}
		if !equal(cells(t, good), "é") {
			t.Errorf("é comes back as %q", good.Result)
		}
	}
	if got := d.cells("SELECT encode(convert_to(key, 'LATIN1'), 'hex') FROM t"); !equal(got, "e9", "e9") {
		t.Errorf("é is stored as %q", got)
	}
}
