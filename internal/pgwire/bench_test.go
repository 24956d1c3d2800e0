package pgwire

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// BenchmarkRun runs statements like those of a store, of one item and of a
// hundred, on one connection.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := open(b, cluster.Open(b), Options{MaxConns: 1})
			keys, numbers := make([]string, n), make([]int64, n)
			for i := range keys {
				keys[i], numbers[i] = fmt.Sprintf("a key of a usual length %d", i), 1700000000000000+int64(i)
			}
			rows := 0
			st := stmt(`SELECT i::int, a, now(), b, now(), c, d, 1.5::float8 FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
				WITH ORDINALITY AS u(k, a, b, c, d, i) WHERE $1::bigint IS NULL`, nil, keys, numbers, numbers, numbers, numbers)
			st.Row = func([][]byte) error { rows++; return nil }
			all := []*ratelimit.Statement{st}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				err := p.Run(ctx, all)
				cancel()
				if err != nil || st.Err != nil {
					b.Fatal(err, st.Err)
				}
			}
			if rows != b.N*n {
				b.Errorf("%d rows", rows)
			}
		})
	}
}
