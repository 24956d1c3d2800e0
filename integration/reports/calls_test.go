package reports

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/integration/grpccall"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// called returns a check of the attempts and the code of a call of gRPC with an API key, by a client that
// retries calls that are UNAVAILABLE.
func called(key, want string) func(*visit) {
	return func(v *visit) {
		s, attempts := grpccall.Call(v, v.trusted, hostOf(v.id), "/r30.Service/Call", "UNAVAILABLE",
			"x-api-key", v.fill(key))
		check.Equal(v, "the attempts and the code of a call", fmt.Sprint(attempts, " ", s.Code()), want)
		if strings.Contains(s.Message(), "HTTP status") {
			v.Errorf("the client has a message of its own: %s", s.Message())
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
