package traefikplugin

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settings that only this proxy has.
var (
	dsnFile        = []settings.Setting{{Name: "dsn_file"}}
	forwardHeaders = []settings.Setting{{Name: "forward_headers"}}
)

// reader reads settings. Its methods go on after an error, with values that are not to be used.
type reader struct {
	err error // the first one; it has the name of the setting in Config
}

// fail records an error of a setting below path. Nil is none.
func (r *reader) fail(path string, err error) {
	if r.err == nil {
		r.err = nameError(path, err)
	}
}

// invalid records an error of a setting.
func (r *reader) invalid(field, value, want string) {
	r.fail("", &ratelimit.FieldError{Field: field, Value: value, Want: want})
}

// nameError gives the field in an error of a setting the name that it has in Config: path, and the name in
// camel case. It returns the error.
func nameError(path string, err error) error {
	if part, ok := err.(*serve.PartError); ok {
		return nameError(pathOf(part.Zone), part.Err)
	}
	if field, ok := err.(*ratelimit.FieldError); ok {
		field.Field = path + camelCase(field.Field)
	}
	return err
}

// camelCase turns on_error into onError. It does not change the name of an environment
// variable.
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

// values reads settings, which may be spelt as in Caddy, such as on_error for onError. A name that no table
// has is an error: without it, a limit or a policy would be off without a word. path begins the names in
// errors. fields are the names of what Traefik decodes itself.
func (r *reader) values(path string, given Settings, fields string,
	tables ...[]settings.Setting) settings.Values {
	known := strings.Fields(fields)
	named := map[string]string{} // settings, by plainName
	for _, table := range tables {
		for i := range table {
			if table[i].Form != settings.Block {
				known = append(known, camelCase(table[i].Name))
				named[plainName(table[i].Name)] = table[i].Name
			}
		}
	}
	var names []string
	for name := range given {
		names = append(names, name)
	}
	sort.Strings(names) // so that of several errors it is always the same one
	read := settings.Values{}
	as := map[string]string{} // the names in given, by setting
	for _, name := range names {
		setting := named[plainName(name)]
		switch {
		case setting == "":
			sort.Strings(known)
			r.invalid("setting", path+name, "one of "+strings.Join(known, ", "))
		case as[setting] != "":
			r.invalid("setting", path+name, "left out: "+as[setting]+" is given")
		}
		as[setting] = name
		read[setting] = plainText(given[name])
	}
	return read
}

// plainName returns what the spellings of a name have in common.
func plainName(name string) string { return strings.ToLower(strings.Replace(name, "_", "", -1)) }

// plainText converts a value to text as Traefik does. Numbers from Kubernetes are floating-point numbers.
func plainText(value any) string {
	if value == nil {
		return ""
	}
	if number, isNumber := value.(float64); isNumber {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// one reads the settings of a list that stands for one map, see Config. Without a list, it returns nil.
func (r *reader) one(path string, list []Settings, tables ...[]settings.Setting) settings.Values {
	r.checkOne(path, len(list))
	if list == nil {
		return nil
	}
	var given Settings
	if len(list) > 0 {
		given = list[0]
	}
	return r.values(path+".", given, "", tables...)
}

// checkOne fails for a list of several maps.
func (r *reader) checkOne(path string, n int) {
	if n > 1 {
		r.invalid(path, strconv.Itoa(n)+" of them", "one map")
	}
}

// read parses the values of a table.
func (r *reader) read(path string, table []settings.Setting, from settings.Values, to *settings.Settings) {
	r.fail(path, settings.Read(table, from, to))
}

// dsn returns the DSN of a part, or the DSN in the part's file.
func (r *reader) dsn(path string, part settings.Values) host.DSN {
	configured := part["dsn"]
	file := part["dsn_file"]
	d := host.DSN{DSN: configured, Password: settings.HasPassword(configured), From: file}
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
	text, err := os.ReadFile(file)
	dsn := strings.TrimSpace(string(text))
	want := ""
	switch {
	case err != nil:
		want = "a file that Traefik can read: " + err.Error()
	case dsn == "":
		want = "a file with " + settings.WantDSN + ": it is empty"
	default:
		return dsn, nil
	}
	return "", &ratelimit.FieldError{Field: path + "dsnFile", Value: file, Want: want}
}
