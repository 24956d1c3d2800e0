package ratelimit

import (
	"errors"
	"strings"
	"time"
)

//go:generate go test . -run TestLinksOfTimeZonesAreCurrent -update

// ParseTimeZone returns the name of a time zone for Limit.TimeZone: "", UTC, Etc/GMT, or the name of a place,
// such as Europe/Berlin, as in the file zone.tab of the IANA database. Of another name that is a link in the
// database, such as US/Eastern or CET, it returns the target, because a server may lack the link or read it
// as an abbreviation without summer time. It rejects all other names, such as localtime, which differ between
// machines, and names that this machine lacks.
func ParseTimeZone(name string) (string, error) {
	if _, rest, found := strings.Cut(TimeZoneLinks, " "+name+"="); found {
		name, _, _ = strings.Cut(rest, " ")
	}
	area, _, _ := strings.Cut(name, "/")
	if name != "" && name != "UTC" && name != "Etc/GMT" && !strings.Contains(timeZoneAreas, " "+area+" ") {
		return "", errors.New("the zone is not a place")
	}
	_, err := time.LoadLocation(name)
	return name, err
}

// timeZoneAreas holds the first parts of the names in zone.tab.
const timeZoneAreas = " Africa America Antarctica Arctic Asia Atlantic Australia Europe Indian Pacific "
