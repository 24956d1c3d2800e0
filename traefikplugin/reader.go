package traefikplugin

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settings that only this proxy has.
var (
	dsnFile        = []settings.Setting{{Name: "dsn_file"}}
	graceTimeOut   = []settings.Setting{{Name: "grace_time_out"}}
	forwardHeaders = []settings.Setting{{Name: "forward_headers"}}
)

// reader reads settings. Its methods continue after an error, with values that must not be used.
type reader struct {
	err error // the first error, with the name of the setting in Config
}

// fail records the error of a setting below path. It ignores a nil err.
func (r *reader) fail(path string, err error) {
	if r.err == nil {
		r.err = nameError(path, err)
	}
}

// invalid records a setting's invalid value.
func (r *reader) invalid(field, value, want string) {
	r.fail("", option.Invalid(field, value, want))
}

// nameError changes the field in a setting's error to its name in Config, which is path and the name in camel
// case. nameError returns the error.
func nameError(path string, err error) error {
	if part, ok := err.(*serve.PartError); ok {
		return nameError(pathOf(part.Part), part.Err)
	}
	if field, ok := err.(*ratelimit.FieldError); ok {
		field.Field = path + camelCase(field.Field)
	}
	return err
}

// camelCase converts on_error to onError. camelCase does not change the name of an environment variable.
func camelCase(name string) string {
	parts := strings.Split(name, "_")
	text := parts[0]
	for _, part := range parts[1:] {
		if part == strings.ToUpper(part) {
			text += "_" + part
		} else {
			text += strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return text
}

// values reads settings by their names in camel case. A name that no table has is an error, because ignoring
// it could turn off a limit. path is the prefix of the names in errors. fields are further names: Traefik
// decodes them into fields, so that raw lacks them, or part reads them.
func (r *reader) values(path string, raw Settings, fields string,
	tables ...[]settings.Setting) settings.Values {
	permitted := strings.Fields(fields)
	inTables := map[string]string{} // the names in tables
	for _, table := range tables {
		for i := range table {
			name := camelCase(table[i].Name)
			if table[i].Form != settings.Block && inTables[name] == "" { // two tables have dsn
				permitted = append(permitted, name)
				inTables[name] = table[i].Name
			}
		}
	}
	var names []string
	for name := range raw {
		names = append(names, name)
	}
	sort.Strings(names) // so that the first error is always the same
	read := settings.Values{}
	for _, name := range names {
		if setting := inTables[name]; setting != "" {
			read[setting] = plainText(raw[name])
		} else if !isOneOf(name, fields) {
			r.invalid("setting", path+name, wantName(path, name, permitted))
		}
	}
	return read
}

// wantName returns what a name that does not exist should be: the one that differs in its case and its
// underscores alone, or one of permitted.
func wantName(path, name string, permitted []string) string {
	for _, right := range permitted {
		if strings.EqualFold(right, strings.Replace(name, "_", "", -1)) {
			return path + right
		}
	}
	sort.Strings(permitted)
	return "one of " + strings.Join(permitted, ", ")
}

// plainText converts a value to text as Traefik does. Numbers from Kubernetes are floating-point numbers.
func plainText(value any) string {
	if value == nil {
		return ""
	}
	if number, ok := value.(float64); ok {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// isOneOf reports whether name is one of the names, which are separated by spaces.
func isOneOf(name, names string) bool {
	for _, other := range strings.Fields(names) {
		if name == other {
			return true
		}
	}
	return false
}

// part returns the settings in a map of raw, such as policy, or nil without the map. For an empty map,
// Traefik passes "" or nil to a plugin. A Docker label may also be {}, true or false.
func (r *reader) part(path string, raw Settings, name string) Settings {
	value, given := raw[name]
	if !given {
		return nil
	}
	if part, ok := value.(Settings); ok {
		return part
	}
	text := plainText(value)
	if text == "" || text == "{}" {
		return Settings{}
	}
	on, err := settings.ParseSwitch(name, text)
	if r.fail(path, err); on {
		return Settings{}
	}
	return nil
}

// read parses the values of a table.
func (r *reader) read(path string, table []settings.Setting, from settings.Values, to *settings.Settings) {
	r.fail(path, settings.Read(table, from, to))
}

// dsn returns the DSN of a part of the configuration, or the DSN in the part's file.
func (r *reader) dsn(path string, part settings.Values) host.DSN {
	configured := part["dsn"]
	file := part["dsn_file"]
	d := host.DSN{DSN: configured, HasPassword: option.HasPassword(configured), From: file}
	if file == "" {
		return d
	}
	if configured != "" {
		r.invalid(path+"dsnFile", file, "left out: dsn is given")
	}
	d.Renew = func() (string, error) { return readDSN(path, file) }
	text, err := d.Renew()
	r.fail("", err)
	d.DSN = text
	return d
}

// readDSN reads the DSN in a file. path names the setting in errors.
func readDSN(path, file string) (string, error) {
	data, err := os.ReadFile(file)
	dsn := strings.TrimSpace(string(data))
	want := ""
	switch {
	case err != nil:
		want = "a file that Traefik can read: " + err.Error()
	case dsn == "":
		want = "a file with " + settings.WantDSN + ": it is empty"
	default:
		return dsn, nil
	}
	return "", option.Invalid(path+"dsnFile", file, want)
}
