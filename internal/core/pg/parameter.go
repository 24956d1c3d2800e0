package pg

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A parameter of a DSN that is not named here is a setting of the session, which the server checks, or one of
// the driver's own parameters.

// Parameter lists the values of a parameter that are permitted, because they ask for what both drivers do
// anyway. Other values would be unsafe to ignore.
type Parameter struct {
	Name   string
	Values []string
}

// Permitted lists the parameters of libpq that both drivers support only in part.
var Permitted = parametersIn(`service; hostaddr; sslcrl; sslcrldir; requirepeer; require_auth; requiressl 0;
	replication false off no 0; gssencmode disable prefer; min_protocol_version 3.0; sslsni 1;
	sslcertmode allow; sslnegotiation postgres; load_balance_hosts disable;
	client_encoding UTF8 utf8 UTF-8 utf-8 UNICODE auto; ssl_min_protocol_version TLSv1.2;
	ssl_max_protocol_version TLSv1.3; target_session_attrs any read-write primary`)

// parametersIn returns the parameters in a text, each with its values.
func parametersIn(text string) []Parameter {
	var all []Parameter
	for _, one := range strings.Split(text, ";") {
		words := strings.Fields(one)
		all = append(all, Parameter{words[0], words[1:]})
	}
	return all
}

// Check returns an error for a value that is not permitted. The error does not quote the value.
func (p *Parameter) Check(value string) error {
	for _, permitted := range p.Values {
		if value == permitted {
			return nil
		}
	}
	if value == "" {
		return nil
	}
	if len(p.Values) == 0 {
		return fmt.Errorf("%s in the dsn is not supported: leave it out", p.Name)
	}
	return fmt.Errorf("%s in the dsn must be one of %s", p.Name, strings.Join(p.Values, ", "))
}

// setOf returns the set of the words of a text.
func setOf(text string) map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(text) {
		set[word] = true
	}
	return set
}

// withoutEffect has the parameters of libpq that have no effect here; init adds those of Permitted.
var withoutEffect = setOf(`keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
	fallback_application_name gssdelegation gsslib krbsrvname krbspn sslcompression sslkeylogfile servicefile
	max_protocol_version authtype tty scram_client_key scram_server_key oauth_issuer oauth_client_id
	oauth_client_secret oauth_scope`)

// own has the parameters that drivers read. libpq's names have lower case.
var own = setOf(`host port dbname database user password passfile connect_timeout application_name options
	sslmode sslcert sslkey sslpassword sslrootcert channel_binding target_session_attrs hostaddr service`)

// foreign maps the parameters of other programs, in lower case, to what to write instead.
var foreign = map[string]string{}

func init() {
	for _, p := range Permitted {
		withoutEffect[p.Name] = p.Name != "target_session_attrs"
	}
	for advice, names := range map[string]string{
		"write search_path=…": "schema currentschema schema_search_path searchpath",
		"write pool_max_conns=…, or the setting max_conns": "connection_limit pool pool_size poolsize max " +
			"max_connections maxpoolsize maximumpoolsize max_overflow pool_max_size",
		"write sslmode=require, or verify-full with sslrootcert=…": "ssl sslaccept sslidentity sslfactory " +
			"ssl_require sslrequire ssl_mode tls usessl sslhostnameverifier trustservercertificate " +
			"uselibpqcompat",
		"write connect_timeout=… in seconds, or the setting timeout": "pool_timeout socket_timeout " +
			"sockettimeout command_timeout commandtimeout connection_timeout connectiontimeout " +
			"query_timeout connectiontimeoutmillis idletimeoutmillis idle_timeout logintimeout " +
			"checkout_timeout timeout connecttimeout cancelsignaltimeout pool_recycle " +
			"max_lifetime max_idle_time",
		"write client_encoding=UTF8, or nothing":            "encoding charset characterencoding",
		"write application_name=…":                          "applicationname",
		"write user=…":                                      "username uid userid user_name",
		"write password=…":                                  "pass pwd passwd",
		"write host=…":                                      "server hostname address datasource",
		"write dbname=…":                                    "db database_name databasename initialcatalog",
		"write target_session_attrs=read-write, or nothing": "targetservertype hostrecheckseconds",
		"leave it out: statements need no setting behind a pooler": "pgbouncer statement_cache_size " +
			"prepared_statement_cache_size prepared_statements preparethreshold preparedstatements " +
			"preparedstatementcachequeries preparedstatementcachesizemib binary_parameters binarytransfer " +
			"disable_prepared_binary_result prefer_simple_protocol prepared_statement_name_func workaround",
		"leave it out": "adapter driver dialect loadbalancehosts tcpkeepalive keepalive keepalivetime " +
			"rewritebatchedinserts stringtype autosave defaultrowfetchsize conn_max_age async_fallback " +
			"server_settings reconnect variables min_messages pooling minpoolsize multiplexing enlist " +
			"readonly assumeminserverversion loglevel pool_pre_ping echo supa",
	} {
		for name := range setOf(names) {
			foreign[name] = advice
		}
	}
}

// nameForm matches the name of a parameter.
var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// errName is the error about a text that is no name. It quotes nothing, because the text may be a password.
var errName = errors.New("dsn: a parameter's name must be letters, digits, underscores and dots")

// parameterName validates the name of a parameter, and returns libpq's name for it.
func parameterName(name string) (string, error) {
	lower := strings.ToLower(name)
	switch advice := foreign[lower]; {
	case !nameForm.MatchString(name):
		return "", errName
	case advice != "":
		return "", fmt.Errorf("the parameter %s in the dsn is of another program: %s", name, advice)
	case own[lower] && name != lower:
		return "", fmt.Errorf("the parameter %s in the dsn must be %s", name, lower)
	case name == "database":
		return "dbname", nil
	}
	return name, nil
}
