// Package pgwire is a small Postgres client: a ratelimit.DB for programs that
// cannot have a full driver, such as a Traefik plugin, which is interpreted.
// It uses the standard library only, in the Go that Yaegi v0.16.1 takes.
//
// # What it speaks
//
// Protocol 3.0, as Postgres 7.4 and everything later does, over TCP, TLS and
// unix sockets. Statements run through the extended protocol in one pipeline
// with a Sync after each; parameters travel as text, results come back in
// binary format. Exec uses the simple protocol.
//
// Authentication: trust, password in clear text, md5, SCRAM-SHA-256, with
// channel binding (SCRAM-SHA-256-PLUS) over TLS, and client certificates. The
// server must prove in SCRAM that it knows the password. Passwords outside
// ASCII are used as they are, but for spaces and characters that do not show;
// one that Unicode normalisation (NFKC) would change cannot log in by SCRAM.
//
// # Connection strings
//
// Open takes URLs and keyword=value pairs as libpq does: several hosts,
// target_session_attrs, every sslmode, the PG… environment variables and the
// password file. As in pgx, a parameter that libpq does not know is a setting
// of the session (search_path=app, say), and a client's private key may be
// readable by others. Parameters of pgx's own pool are understood
// (pool_max_conns, pool_max_conn_lifetime, pool_max_conn_idle_time,
// default_query_exec_mode, statement_cache_capacity) or have no effect, so that
// one string serves both clients.
//
// Refused, each with an error that says so: service files, encrypted private
// keys, certificate revocation lists, requirepeer, sslcertmode=require,
// gssencmode=require, and a client_encoding other than UTF8. A server that asks
// for GSSAPI, SSPI, Kerberos or OAuth is told off. A server's certificate must
// name its host as a subject alternative name for sslmode=verify-full; a common
// name alone is not enough.
//
// Not there at all: COPY, LISTEN, transactions over several statements, types
// other than those of ratelimit.Statement.
//
// # Prepared statements
//
// Each text is prepared once a connection, under a name made from the text's
// hash. A transaction pooler such as PgBouncer hands out another server
// connection each time, where that name may be missing, or there already. The
// server refuses such a statement without having run it, so it is run again
// without a name; at the second time the pool stops using names for good. Where
// the pooler keeps track of names (PgBouncer from 1.21, if set up so), they stay.
//
// # When a statement is run again
//
// Only where it surely did not run: its prepared statement was missing or out of
// date; the server closed the connection while it was idle and said so; not one
// byte of it was sent. In all other cases of a lost connection the outcome is
// unknown, and the statement says so in its Err.
//
// # Time
//
// Every call ends when its context does. The statement under way is then
// cancelled on the server, in the background, and its connection dropped.
// Connections are made in the background: one that takes longer than the call
// that wanted it serves a later call. Without connect_timeout, an attempt ends
// after 10 seconds, or after 2 where there is another address to try; a host that
// did not answer comes last for 10 seconds.
//
// # Goroutines
//
// One a connection, which sees its end at once; one for each connection being
// made or cancelled, and one for a request above 64 KiB while it is written. All
// are bounded by Options.MaxConns, and none lets a panic out.
package pgwire
