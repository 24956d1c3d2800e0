package reports

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// attemptsOf counts the attempts of calls.
type attemptsOf struct {
	stats.Handler
	n atomic.Int32
}

func (a *attemptsOf) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		a.n.Add(1)
	}
}
func (*attemptsOf) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*attemptsOf) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*attemptsOf) HandleConn(context.Context, stats.ConnStats)                       {}

// fourAttempts is the policy of a client that repeats calls that are UNAVAILABLE.
const fourAttempts = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4,
	"initialBackoff": "0.01s", "maxBackoff": "0.01s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// called returns a check of the attempts and the code of a call of gRPC with an API key.
func called(key, want string) func(*testing.T, *proxy, string, []*harness.Response) {
	return func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
		attempts := &attemptsOf{}
		conn, err := grpc.NewClient(p.trusted, grpc.WithAuthority(hostOf(id)),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(fourAttempts), grpc.WithStatsHandler(attempts))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", p.fill(key, id))
		s := status.Convert(conn.Invoke(ctx, "/r30.Service/Call", &emptypb.Empty{}, &emptypb.Empty{}))
		got := fmt.Sprintf("%d %v", attempts.n.Load(), s.Code())
		check.Equal(t, id+": the attempts and the code of a call", got, want)
		if strings.Contains(s.Message(), "HTTP status") {
			t.Errorf("%s: the client has a message of its own: %s", id, s.Message())
		}
	}
}

// banned is the SQL for a user that is banned and has an API key.
const banned = `INSERT INTO rate_limit_users (user_id, tier) VALUES ('ID', 'free');
	INSERT INTO rate_limit_api_keys (id, digest, user_id)
	SELECT max(id) + 1, sha256('ID-9f86d081884c7d659a2feaa0c55ad015'), 'ID' FROM rate_limit_api_keys;
	INSERT INTO rate_limit_bans (user_id, until) VALUES ('ID', now() + interval '1 hour');`

var calls = []report{
	{"R30", "envoyproxy/envoy#4660, #21461; projectcontour/contour#4901", append([]site{
		{zones: []string{"key all\nlimit 2 1m"}, asks: []ask{{n: 2, want: "200×2"},
			{line: "POST /", headers: "Content-Type: application/json", want: "429×1",
				body: `{"error":"Too many requests","retryAfter":…`},
			{line: "POST /", headers: "Content-Type: application/grpc\nTE: trailers", want: "429×1",
				body: `{"error":"Too many requests","retryAfter":…`}},
			check: called("", "1 ResourceExhausted")},
		{policy: withKey, sql: banned, upstream: mustNotBeAsked,
			check: called("ID-9f86d081884c7d659a2feaa0c55ad015", "1 PermissionDenied")},
		{policy: withKey, upstream: mustNotBeAsked, check: called("unknown", "1 Unauthenticated")},
		{handler: "dsn postgres://127.0.0.1:1/nothing", zones: []string{"limit 2 1m"},
			upstream: mustNotBeAsked, check: called("", "1 Unavailable")},
	}, settledBy("Grpc-Status", "Content-Length", "Set-Cookie", "Trailer")...)},
}

// settledBy returns a site for each header that clients need, which settle refuses by its name.
func settledBy(headers ...string) (sites []site) {
	for _, name := range headers {
		sites = append(sites, site{refused: `settle: "header ` + name + `"`, zones: []string{
			"algorithm fixed_window\nlimit 5 1h\nsettle header " + name}})
	}
	return sites
}
