package ratelimit

import (
	"errors"
	"strings"
	"time"
)

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

// TimeZoneLinks has LINK=TARGET for each name of a time zone that ParseTimeZone replaces, with a space before
// and after it. They are the links of the IANA database that are not in its file zone.tab, by its file
// backward of release 2026c. The target is in zone.tab, or is Etc/GMT or UTC.
const TimeZoneLinks = " Africa/Asmera=Africa/Asmara Africa/Timbuktu=Africa/Abidjan" +
	" America/Argentina/ComodRivadavia=America/Argentina/Catamarca America/Atka=America/Adak" +
	" America/Buenos_Aires=America/Argentina/Buenos_Aires America/Catamarca=America/Argentina/Catamarca" +
	" America/Coral_Harbour=America/Panama America/Cordoba=America/Argentina/Cordoba" +
	" America/Ensenada=America/Tijuana America/Fort_Wayne=America/Indiana/Indianapolis" +
	" America/Godthab=America/Nuuk America/Indianapolis=America/Indiana/Indianapolis" +
	" America/Jujuy=America/Argentina/Jujuy America/Knox_IN=America/Indiana/Knox" +
	" America/Louisville=America/Kentucky/Louisville America/Mendoza=America/Argentina/Mendoza" +
	" America/Montreal=America/Toronto America/Nipigon=America/Toronto" +
	" America/Pangnirtung=America/Iqaluit America/Porto_Acre=America/Rio_Branco" +
	" America/Rainy_River=America/Winnipeg America/Rosario=America/Argentina/Cordoba" +
	" America/Santa_Isabel=America/Tijuana America/Shiprock=America/Denver" +
	" America/Thunder_Bay=America/Toronto America/Virgin=America/St_Thomas" +
	" America/Yellowknife=America/Edmonton Antarctica/South_Pole=Pacific/Auckland" +
	" Asia/Ashkhabad=Asia/Ashgabat Asia/Calcutta=Asia/Kolkata Asia/Choibalsan=Asia/Ulaanbaatar" +
	" Asia/Chongqing=Asia/Shanghai Asia/Chungking=Asia/Shanghai Asia/Dacca=Asia/Dhaka" +
	" Asia/Harbin=Asia/Shanghai Asia/Istanbul=Europe/Istanbul Asia/Kashgar=Asia/Urumqi" +
	" Asia/Katmandu=Asia/Kathmandu Asia/Macao=Asia/Macau Asia/Rangoon=Asia/Yangon" +
	" Asia/Saigon=Asia/Ho_Chi_Minh Asia/Tel_Aviv=Asia/Jerusalem Asia/Thimbu=Asia/Thimphu" +
	" Asia/Ujung_Pandang=Asia/Makassar Asia/Ulan_Bator=Asia/Ulaanbaatar Atlantic/Faeroe=Atlantic/Faroe" +
	" Atlantic/Jan_Mayen=Europe/Berlin Australia/ACT=Australia/Sydney" +
	" Australia/Canberra=Australia/Sydney Australia/Currie=Australia/Hobart" +
	" Australia/LHI=Australia/Lord_Howe Australia/NSW=Australia/Sydney Australia/North=Australia/Darwin" +
	" Australia/Queensland=Australia/Brisbane Australia/South=Australia/Adelaide" +
	" Australia/Tasmania=Australia/Hobart Australia/Victoria=Australia/Melbourne" +
	" Australia/West=Australia/Perth Australia/Yancowinna=Australia/Broken_Hill" +
	" Brazil/Acre=America/Rio_Branco Brazil/DeNoronha=America/Noronha Brazil/East=America/Sao_Paulo" +
	" Brazil/West=America/Manaus CET=Europe/Brussels CST6CDT=America/Chicago" +
	" Canada/Atlantic=America/Halifax Canada/Central=America/Winnipeg Canada/Eastern=America/Toronto" +
	" Canada/Mountain=America/Edmonton Canada/Newfoundland=America/St_Johns" +
	" Canada/Pacific=America/Vancouver Canada/Saskatchewan=America/Regina" +
	" Canada/Yukon=America/Whitehorse Chile/Continental=America/Santiago" +
	" Chile/EasterIsland=Pacific/Easter Cuba=America/Havana EET=Europe/Athens EST=America/Panama" +
	" EST5EDT=America/New_York Egypt=Africa/Cairo Eire=Europe/Dublin Etc/GMT+0=Etc/GMT" +
	" Etc/GMT-0=Etc/GMT Etc/GMT0=Etc/GMT Etc/Greenwich=Etc/GMT Etc/UCT=UTC Etc/UTC=UTC" +
	" Etc/Universal=UTC Etc/Zulu=UTC Europe/Belfast=Europe/London Europe/Kiev=Europe/Kyiv" +
	" Europe/Nicosia=Asia/Nicosia Europe/Tiraspol=Europe/Chisinau Europe/Uzhgorod=Europe/Kyiv" +
	" Europe/Zaporozhye=Europe/Kyiv GB=Europe/London GB-Eire=Europe/London GMT=Etc/GMT GMT+0=Etc/GMT" +
	" GMT-0=Etc/GMT GMT0=Etc/GMT Greenwich=Etc/GMT HST=Pacific/Honolulu Hongkong=Asia/Hong_Kong" +
	" Iceland=Atlantic/Reykjavik Iran=Asia/Tehran Israel=Asia/Jerusalem Jamaica=America/Jamaica" +
	" Japan=Asia/Tokyo Kwajalein=Pacific/Kwajalein Libya=Africa/Tripoli MET=Europe/Brussels" +
	" MST=America/Phoenix MST7MDT=America/Denver Mexico/BajaNorte=America/Tijuana" +
	" Mexico/BajaSur=America/Mazatlan Mexico/General=America/Mexico_City NZ=Pacific/Auckland" +
	" NZ-CHAT=Pacific/Chatham Navajo=America/Denver PRC=Asia/Shanghai PST8PDT=America/Los_Angeles" +
	" Pacific/Enderbury=Pacific/Kanton Pacific/Johnston=Pacific/Honolulu Pacific/Ponape=Pacific/Pohnpei" +
	" Pacific/Samoa=Pacific/Pago_Pago Pacific/Truk=Pacific/Chuuk Pacific/Yap=Pacific/Port_Moresby" +
	" Poland=Europe/Warsaw Portugal=Europe/Lisbon ROC=Asia/Taipei ROK=Asia/Seoul" +
	" Singapore=Asia/Singapore Turkey=Europe/Istanbul UCT=UTC US/Alaska=America/Anchorage" +
	" US/Aleutian=America/Adak US/Arizona=America/Phoenix US/Central=America/Chicago" +
	" US/East-Indiana=America/Indiana/Indianapolis US/Eastern=America/New_York" +
	" US/Hawaii=Pacific/Honolulu US/Indiana-Starke=America/Indiana/Knox US/Michigan=America/Detroit" +
	" US/Mountain=America/Denver US/Pacific=America/Los_Angeles US/Samoa=Pacific/Pago_Pago" +
	" Universal=UTC W-SU=Europe/Moscow WET=Europe/Lisbon Zulu=UTC "
